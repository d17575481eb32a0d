/** A page of the site that simulates nothing. */

import { keepForOffline } from "./offline";
import { connect, firstTongue, speak } from "./site";

connect(speak);
speak(firstTongue());
addEventListener("load", () => keepForOffline());

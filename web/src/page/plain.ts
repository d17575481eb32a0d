/** A page of the site that simulates nothing. */

import { connect, firstTongue, speak } from "./site";

connect(speak);
speak(firstTongue());

import { expect, test } from "vitest";
import { Status } from "../src/page/status";
import { TEXTS } from "../src/page/texts";

const said = (status: Status) => status.text(TEXTS.en);

test("a failed answer is said until the next answer, and is no failed start", () => {
  const status = new Status();
  status.hear({ kind: "progress", share: 0.5, starting: false });
  expect(said(status)).toBe("Recorded picture. Loading the simulator 50% …");
  status.hear({ kind: "ready", loaded: [] });
  status.live = true;
  expect(said(status)).toBe("Live");
  status.hear({ kind: "failed", why: "out of memory" });
  expect(said(status)).toBe("The simulator could not answer: out of memory");
  status.hear({ kind: "answer", answer: {} });
  expect(said(status)).toBe("Live");
});

test("a start that failed stays so", () => {
  const status = new Status();
  status.hear({ kind: "failed", why: "python_stdlib.zip: 404" });
  expect(said(status)).toBe("The simulator could not be started: python_stdlib.zip: 404");
});

// node mathematics.mjs: reads [{"tex", "display"}] as JSON, writes [HTML with MathML] of each.
import katex from "katex";
import { readFileSync } from "node:fs";

const formulas = JSON.parse(readFileSync(0, "utf8"));
const html = ({ tex, display }) => katex.renderToString(tex, { displayMode: display, strict: "error" });
process.stdout.write(JSON.stringify(formulas.map(html)));

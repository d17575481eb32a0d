// Builds the front end with esbuild.
//   node build.mjs [FOLDER]                the widgets' bundles, by default into the package
//   node build.mjs --page FOLDER SIZES     the page and its worker; SIZES is a JSON object with the
//                                          compressed bytes of each file that the worker loads
import { build } from "esbuild";
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const page = process.argv[2] === "--page";
const folder = process.argv[page ? 3 : 2] ?? here("../simlab/views/bundle");
const common = {
  absWorkingDir: here("."),
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
  loader: { ".css": "text" },
};

if (!page) {
  const entryPoints = { timeline: here("src/widget.ts"), explorer: here("src/explorer_widget.ts") };
  await build({ ...common, entryPoints, outdir: folder });
} else {
  const sources = { page: "main", site: "plain", worker: "worker", offline: "service_worker", "explorers/page": "explorer", "questions/page": "question", "questions/list": "questions", "questions/drill": "drill" };
  const entryPoints = Object.fromEntries(
    Object.entries(sources).map(([name, source]) => [name, here(`src/page/${source}.ts`)]),
  );
  const define = { FILES: process.argv[4] };
  // what Pyodide imports only where it runs under node
  const external = ["node:*", "ws"];
  await build({ ...common, entryPoints, outdir: folder, define, external });
}

// the libraries whose code is in a bundle ask that their licences go with it
const licence = (name) => readFile(here(`node_modules/${name}/LICENSE`), "utf8");
const texts = ["d3-shape", "d3-path"].map(async (name) => `${name}\n\n${await licence(name)}`);
await writeFile(`${folder}/licences.txt`, (await Promise.all(texts)).join("\n"));

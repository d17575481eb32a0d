// Timelines in the browser: canvas.py sends packed traces; here they are painted, zoomed, and named under the pointer.
// All lengths are CSS pixels unless a name ends in `Device`; times are seconds, shown as ms.

const LEFT = 76, RIGHT = 16, LEGEND = 30, TITLE = 22, AXIS = 22, STRIP = 84, GAP = 14, FOOT = 20;
const ROOM_FOR_ROWS = 560, ROW_MOST = 26, ROW_LEAST = 9, BAR = 0.82; // bars take this part of a row
const OUTLINED = 7; // boxes get outlines if they are this wide on average
const MOST_ZOOM = 1e4, ZOOM_STEP = 1.25, PAN_STEP = 0.1, CLICK = 4;
const SAME = 5e-7; // of the step: memory points closer than this are at one time (Float32 rounds)
const FONT = "12px system-ui, sans-serif", SMALL = "11px system-ui, sans-serif", INK = "#222", GRID = "#ddd", WHITE = [255, 255, 255];
const HINT = "drag: zoom · shift+drag: pan · wheel: zoom, once clicked · keys: + − ← → 0";

// a panel's bytes → arrays -------------------------------------------------------------------------------------

const bytes = (view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength);

/** `count` columns of numbers of one `type`, which lie one after the other. */
function columns(view, type, count = 1) {
  const size = type.BYTES_PER_ELEMENT, length = view.byteLength / size / count;
  const aligned = view.byteOffset % size === 0 ? bytes(view) : bytes(view).slice();
  return Array.from({ length: count }, (_, number) => new type(aligned.buffer, aligned.byteOffset + size * number * length, length));
}

/** For each rank, the numbers of its items, in their order. */
function byRank(rank, ranks) {
  const ends = new Uint32Array(ranks + 1), order = new Uint32Array(rank.length);
  for (let i = 0; i < rank.length; i++) ends[rank[i] + 1]++;
  for (let i = 0; i < ranks; i++) ends[i + 1] += ends[i];
  const starts = ends.slice();
  for (let i = 0; i < rank.length; i++) order[starts[rank[i]]++] = i;
  return Array.from({ length: ranks }, (_, i) => order.subarray(ends[i], ends[i + 1]));
}

function unpack(packed) {
  const [start, end] = columns(packed.boxes, Float32Array, 2), [rank] = columns(packed.rows, Uint16Array);
  const [time, amount] = columns(packed.memory, Float32Array, 2), [holder] = columns(packed.holders, Uint16Array);
  const kinds = bytes(packed.kinds), text = bytes(packed.ops), path = packed.path && [...columns(packed.path, Uint32Array)[0]];
  let names;
  const name = (box) => (names ??= new TextDecoder().decode(text).split(" "))[box]; // not before one is asked for
  const kind = (box) => String.fromCharCode(kinds[box]), parts = (box) => name(box).split(kind(box));
  return {
    ...packed, start, end, rank, kinds, path, name, kind, parts, // parts: stage, microbatch
    used: new Set(packed.used), strong: path && new Set(path), rows: byRank(rank, packed.ranks),
    curves: byRank(holder, packed.ranks).map((points) => curve(points, time, amount, packed.end_s)),
  }; // prettier-ignore
}

/** {times, amounts} of one rank's step line: of points at one time the last counts. */
function curve(points, time, amount, end) {
  const times = new Float32Array(points.length + 1), amounts = new Float32Array(points.length + 1);
  let last = 0;
  for (const point of points) {
    if (last === 0 || time[point] - times[last] > SAME * end) times[++last] = time[point];
    amounts[last] = amount[point];
  }
  return { times: times.subarray(0, last + 1), amounts: amounts.subarray(0, last + 1) };
}

/** How many of the ascending values `at(0) ... at(length - 1)` are not above `limit`. */
function countUpTo(limit, length, at) {
  let low = 0, high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at(middle) <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

// numbers as text ------------------------------------------------------------------------------------------------

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const mixed = (colour, other, share) => colour.map((value, at) => share * value + (1 - share) * other[at]);

/** `seconds` in ms, as far as Float32 knows them on a time axis that ends at `end`: six digits of the whole. */
const ms = (seconds, end) => String(Number((seconds * 1e3).toFixed(Math.max(6 - Math.ceil(Math.log10(end * 1e3)), 0))));

/** Multiples of 1, 2 or 5 times a power of ten from `from` to `to`, about `count` of them, and their decimals. */
function ticks(from, to, count) {
  const rough = (to - from) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9));
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), values = [];
  for (let number = Math.ceil(from / step - 1e-9); number * step <= to + 1e-9 * step; number++) values.push(number * step);
  return { values, decimals };
}

// painting -------------------------------------------------------------------------------------------------------

/** Lay `colour` on `base` in `line` (r, g, b per pixel) from `left` to `right`; a pixel covered in part gets that part of it. */
function lay(line, left, right, base, colour) {
  const pixels = line.length / 3;
  left = Math.max(left, 0);
  right = Math.min(right, pixels);
  if (!(right > left)) return;
  const first = Math.floor(left), last = Math.floor(right);
  if (first === last) return blend(line, first, right - left, base, colour);
  blend(line, first, first + 1 - left, base, colour);
  const [red, green, blue] = colour;
  for (let at = 3 * (first + 1); at < 3 * last; at += 3) {
    line[at] = red;
    line[at + 1] = green;
    line[at + 2] = blue;
  }
  if (last < pixels) blend(line, last, right - last, base, colour);
}

function blend(line, pixel, part, base, colour) {
  line[3 * pixel] += part * (colour[0] - base[0]);
  line[3 * pixel + 1] += part * (colour[1] - base[1]);
  line[3 * pixel + 2] += part * (colour[2] - base[2]);
}

/** A canvas one pixel high per rank: what share of each pixel is which op or idle, as the mixture of their colours. */
function raster({ ranks, start, end, end_s, kinds, strong }, from, perSecond, width, seen, style) {
  const image = new ImageData(width, ranks), line = new Float32Array(3 * width), idle = rgb(style.idle), full = [], faded = [];
  for (const [kind, hex] of Object.entries(style.colours)) {
    full[kind.charCodeAt(0)] = rgb(hex);
    faded[kind.charCodeAt(0)] = mixed(rgb(hex), idle, style.faded);
  }
  for (let rank = 0; rank < ranks; rank++) {
    line.fill(255);
    lay(line, -from * perSecond, (end_s - from) * perSecond, WHITE, idle);
    for (const box of seen[rank]) {
      const colours = !strong || strong.has(box) ? full : faded;
      lay(line, (start[box] - from) * perSecond, (end[box] - from) * perSecond, idle, colours[kinds[box]]);
    }
    for (let pixel = 0, at = 4 * rank * width; pixel < width; pixel++, at += 4) {
      image.data[at] = line[3 * pixel];
      image.data[at + 1] = line[3 * pixel + 1];
      image.data[at + 2] = line[3 * pixel + 2];
      image.data[at + 3] = 255;
    }
  }
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, ranks];
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

class Timeline {
  constructor(model, el) {
    [this.model, this.style] = [model, model.get("style")];
    this.build(el);
    this.listen();
    this.show();
  }

  build(el) {
    const make = (tag, css, parent) => parent.appendChild(Object.assign(document.createElement(tag), { style: css }));
    this.frame = make("div", `position: relative; background: white; color: ${INK}; font: ${FONT}`, el);
    this.canvas = make("canvas", "display: block; width: 100%; cursor: crosshair; touch-action: pan-y", this.frame);
    Object.assign(this.canvas, { tabIndex: 0, place: (number, rank, time) => this.place(number, rank, time) });
    this.canvas.setAttribute("role", "img");
    this.reset = make("button", `position: absolute; top: 4px; left: 4px; font: ${SMALL}`, this.frame);
    Object.assign(this.reset, { type: "button", textContent: "reset zoom", title: HINT });
    const over = "position: absolute; display: none; pointer-events: none; ";
    this.selection = make("div", over + "background: rgb(0 0 0 / 12%); top: 0; bottom: 0", this.frame);
    this.tip = make("div", over + "background: #222; color: white; padding: 3px 7px; border-radius: 3px; white-space: pre; z-index: 9", this.frame);
    this.tip.className = "simlab-tip";
  }

  /** Take over the model's panels. What was zoomed in stays so. */
  show() {
    const full = this.range === undefined || !this.zoomed();
    this.panels = this.model.get("panels").map(unpack);
    this.end = Math.max(...this.panels.map((panel) => panel.end_s)) * 1.002;
    this.serial = this.model.get("serial");
    this.canvas.setAttribute("aria-label", `${this.panels.map((panel) => panel.title).join("; ")}. ${HINT}`);
    this.look(...(full ? [0, this.end] : this.range));
    this.hover(null);
  }

  zoomed() {
    return this.range[0] > 0 || this.range[1] < this.end;
  }

  /** Make from .. to the visible interval, as far as there is something. */
  look(from, to) {
    const width = Math.min(Math.max(to - from, this.end / MOST_ZOOM), this.end), middle = (from + to) / 2;
    const left = Math.min(Math.max(middle - width / 2, 0), this.end - width);
    this.range = width === this.end ? [0, this.end] : [left, left + width];
    this.reset.disabled = !this.zoomed();
    this.request();
  }

  /** Paint with the next frame; when the one after it begins, what was painted is to be seen. */
  request() {
    this.frameAsked ??= requestAnimationFrame(() => {
      this.frameAsked = undefined;
      this.draw();
      const [serial, range] = [this.serial, this.range.join(" ")];
      requestAnimationFrame(() => Object.assign(this.canvas.dataset, { range, painted: serial }));
    });
  }

  // where things are: `plots` has the place of each panel, `x` turns s into px, `time` px into s

  arrange() {
    const room = this.model.get("room"), height = Math.min(Math.max(ROOM_FOR_ROWS / room, ROW_LEAST), ROW_MOST) * room;
    this.width = Math.max(this.frame.clientWidth - LEFT - RIGHT, 50);
    this.plots = this.panels.map((panel, number) => {
      const top = LEGEND + TITLE + number * (height + AXIS + STRIP + AXIS + GAP + TITLE);
      return { panel, top, height, row: height / panel.ranks, strip: top + height + AXIS };
    });
    this.height = this.plots.at(-1).strip + STRIP + AXIS + FOOT;
    const scale = window.devicePixelRatio || 1, [width, tall] = [this.width + LEFT + RIGHT, this.height].map((px) => Math.round(px * scale));
    this.canvas.style.height = `${this.height}px`;
    if (this.canvas.width !== width || this.canvas.height !== tall) [this.canvas.width, this.canvas.height] = [width, tall];
    return scale;
  }

  x(time) {
    return LEFT + ((time - this.range[0]) / (this.range[1] - this.range[0])) * this.width;
  }

  time(x) {
    return this.range[0] + ((x - LEFT) / this.width) * (this.range[1] - this.range[0]);
  }

  /** [left, top] of `time` on `rank` of panel `number`, in the browser's window: for a script that wants to point at a box. */
  place(number, rank, time) {
    const { left, top } = this.canvas.getBoundingClientRect(), plot = this.plots[number];
    return [left + this.x(time), top + plot.top + (rank + 0.5) * plot.row];
  }

  /** Per rank, its boxes in the visible interval. */
  seen({ rows, start, end }) {
    return rows.map((row) => {
      const first = countUpTo(this.range[0], row.length, (at) => end[row[at]]);
      return row.subarray(first, countUpTo(this.range[1], row.length, (at) => start[row[at]]));
    });
  }

  draw() {
    const scale = this.arrange(), pen = (this.pen = this.canvas.getContext("2d"));
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.fillStyle = "white";
    pen.fillRect(0, 0, this.width + LEFT + RIGHT, this.height);
    pen.font = FONT;
    this.thin = 1 / scale;
    this.most = Math.max(...this.panels.map((panel) => Math.max(panel.peak, panel.cap ?? 0)));
    this.drawLegend();
    for (const plot of this.plots) {
      this.write(plot.panel.title, LEFT, plot.top - 8, { font: "13px system-ui, sans-serif" });
      this.drawBoxes(plot, scale);
      this.drawAxis(plot.top + plot.height);
      this.drawStrip(plot);
      this.drawAxis(plot.strip + STRIP);
    }
    this.write("time, ms", LEFT, this.height - 6);
    this.write(HINT, LEFT + this.width, this.height - 6, { align: "right", font: SMALL, colour: "#777" });
  }

  write(text, x, y, { align = "left", font = FONT, colour = INK } = {}) {
    Object.assign(this.pen, { textAlign: align, textBaseline: "alphabetic", font, fillStyle: colour });
    this.pen.fillText(text, x, y);
  }

  within(top, height, paint) {
    this.pen.save();
    this.pen.beginPath();
    this.pen.rect(LEFT, top, this.width, height);
    this.pen.clip();
    paint();
    this.pen.restore();
  }

  drawLegend() {
    const { colours, meaning, idle, path } = this.style;
    const entries = Object.keys(colours).filter((kind) => this.panels.some((panel) => panel.used.has(kind)));
    const items = [...entries.map((kind) => [`${kind} ${meaning[kind]}`, colours[kind], INK]), ["idle", idle, "#999"]];
    if (this.panels.some((panel) => panel.path)) items.push(["critical path", "white", path]);
    this.pen.font = FONT;
    let x = LEFT + this.width - items.reduce((sum, [text]) => sum + this.pen.measureText(text).width + 34, -16);
    for (const [text, fill, line] of items) {
      Object.assign(this.pen, { fillStyle: fill, strokeStyle: line, lineWidth: text === "critical path" ? 2 : this.thin });
      this.pen.fillRect(x, 8, 13, 13);
      this.pen.strokeRect(x, 8, 13, 13);
      this.write(text, x + 18, 19);
      x += this.pen.measureText(text).width + 34;
    }
  }

  drawBoxes({ panel, top, height, row }, scale) {
    const seen = this.seen(panel), widthDevice = Math.round(this.width * scale);
    const perSecond = this.width / (this.range[1] - this.range[0]);
    const picture = raster(panel, this.range[0], perSecond * scale, widthDevice, seen, this.style);
    this.pen.imageSmoothingEnabled = false;
    const bar = Math.max(Math.round(row * BAR * scale), 1) / scale, above = (rank) => Math.round((top + rank * row + (row - bar) / 2) * scale) / scale;
    for (let rank = 0; rank < panel.ranks; rank++) {
      this.pen.drawImage(picture, 0, rank, widthDevice, 1, LEFT, above(rank), widthDevice / scale, bar);
      if (this.coloured(panel)) {
        this.pen.fillStyle = this.style.ranks[rank];
        this.pen.fillRect(LEFT - 6, above(rank), 3, bar); // the colour of its line in the memory strip
      }
      if (rank % Math.ceil(12 / row) === 0) this.write(`rank ${rank}`, LEFT - 9, above(rank) + bar / 2 + 4, { align: "right", font: SMALL });
    }
    const count = seen.reduce((sum, boxes) => sum + boxes.length, 0);
    const together = seen.reduce((sum, boxes) => boxes.reduce((total, box) => total + panel.end[box] - panel.start[box], sum), 0);
    const wide = together * perSecond >= OUTLINED * count;
    this.within(top, height, () => {
      if (wide) seen.forEach((boxes, rank) => this.drawOutlines(panel, boxes, above(rank), bar, scale));
      if (panel.path) this.drawPath(panel, above, bar);
    });
  }

  /** Outlines of `boxes`, and labels of those wide enough. */
  drawOutlines(panel, boxes, top, bar, scale) {
    const snap = (x) => (Math.round(x * scale) + 0.5) / scale;
    Object.assign(this.pen, { lineWidth: this.thin, strokeStyle: INK, fillStyle: "black", font: SMALL, textAlign: "center", textBaseline: "middle" });
    const digit = this.pen.measureText("0").width;
    this.pen.beginPath();
    for (const box of boxes) {
      const left = this.x(panel.start[box]), right = this.x(panel.end[box]);
      this.pen.rect(snap(left), snap(top), snap(right) - snap(left), bar - this.thin);
      if (bar < 10 || right - left < digit + 4) continue;
      const label = panel.parts(box)[1];
      if (right - left >= digit * label.length + 4) this.pen.fillText(label, (left + right) / 2, top + bar / 2 + 1);
    }
    this.pen.stroke();
  }

  drawPath({ path, start, end, rank }, above, bar) {
    Object.assign(this.pen, { lineWidth: 2.2, strokeStyle: this.style.path });
    this.pen.beginPath();
    path.forEach((box, at) => {
      const top = above(rank[box]), right = this.x(end[box]), next = path[at + 1];
      this.pen.rect(this.x(start[box]), top, right - this.x(start[box]), bar);
      if (next === undefined) return;
      const side = Math.sign(rank[next] - rank[box]); // where the next box lies: below 1, above -1
      this.pen.moveTo(right, top + (bar * (1 + side)) / 2);
      this.pen.lineTo(this.x(start[next]), above(rank[next]) + (bar * (1 - side)) / 2);
    });
    this.pen.stroke();
  }

  drawAxis(y) {
    const { values, decimals } = ticks(this.range[0] * 1e3, this.range[1] * 1e3, this.width / 90);
    this.pen.fillStyle = "#999";
    this.pen.fillRect(LEFT, y, this.width, this.thin);
    for (const value of values) {
      this.pen.fillStyle = "#999";
      this.pen.fillRect(this.x(value / 1e3), y, this.thin, 4);
      this.write(value.toFixed(decimals), this.x(value / 1e3), y + 15, { align: "center", font: SMALL });
    }
  }

  /** Whether each rank has a colour of its own in the memory strip. */
  coloured(panel) {
    return panel.peak && panel.ranks <= this.style.ranks.length;
  }

  drawStrip({ panel, strip }) {
    if (!panel.peak) return this.write("memory was not recorded", LEFT + this.width / 2, strip + STRIP / 2, { align: "center", colour: "#777" });
    const y = (amount) => strip + STRIP * (1 - amount / (1.1 * this.most || 1));
    const { values, decimals } = ticks(0, 1.1 * this.most, 5);
    for (const value of values) {
      this.pen.fillStyle = GRID;
      this.pen.fillRect(LEFT, y(value), this.width, this.thin);
      this.write(value.toFixed(decimals), LEFT - 6, y(value) + 4, { align: "right", font: SMALL });
    }
    this.pen.save();
    this.pen.translate(14, strip + STRIP / 2);
    this.pen.rotate(-Math.PI / 2);
    panel.memory_label.split("\n").forEach((text, line) => this.write(text, 0, 13 * line, { align: "center", font: SMALL }));
    this.pen.restore();
    this.within(strip - 2, STRIP + 4, () => {
      if (this.coloured(panel)) panel.curves.forEach((curve, rank) => this.drawCurve(curve, panel.end_s, y, this.style.ranks[rank]));
      else this.drawBand(panel, y);
      if (panel.cap !== null) this.drawCap(panel, y);
    });
  }

  /** A step line, thinned to what one can see: per pixel column at most its lowest, its highest and its last amount. */
  drawCurve({ times, amounts }, end, y, colour) {
    Object.assign(this.pen, { strokeStyle: colour, lineWidth: 1.4, lineJoin: "miter" });
    this.pen.beginPath();
    const first = Math.max(countUpTo(this.range[0], times.length, (at) => times[at]) - 1, 0);
    let column = this.x(times[first]), low = amounts[first], high = low, last = low;
    this.pen.moveTo(column, y(last));
    const finish = (x) => {
      if (low < last) this.pen.lineTo(column, y(low));
      if (high > last) this.pen.lineTo(column, y(high));
      this.pen.lineTo(column, y(last));
      this.pen.lineTo(x, y(last));
    };
    for (let at = first + 1; at < times.length && times[at] <= this.range[1]; at++) {
      const x = this.x(times[at]);
      if (x - column >= 0.5) {
        finish(x);
        [column, low, high] = [x, amounts[at], amounts[at]];
      }
      low = Math.min(low, amounts[at]);
      high = Math.max(high, amounts[at]);
      last = amounts[at];
    }
    finish(this.x(end));
    this.pen.stroke();
  }

  /** Of many ranks: the most and the least that any of them holds, pixel by pixel. */
  drawBand({ curves, end_s, ranks }, y) {
    const most = new Float32Array(Math.ceil(this.width) + 1).fill(-Infinity), least = most.map(() => Infinity);
    const pixel = (time) => Math.min(Math.max(Math.floor(this.x(time) - LEFT), 0), most.length - 1), stop = pixel(end_s);
    for (const { times, amounts } of curves) {
      const first = Math.max(countUpTo(this.range[0], times.length, (at) => times[at]) - 1, 0);
      for (let at = first; at < times.length && times[at] <= this.range[1]; at++) {
        const to = at + 1 < times.length ? pixel(times[at + 1]) : stop;
        for (let column = pixel(times[at]); column <= to; column++) {
          if (amounts[at] > most[column]) most[column] = amounts[at];
          if (amounts[at] < least[column]) least[column] = amounts[at];
        }
      }
    }
    const bars = (colour, top, height) => {
      this.pen.fillStyle = colour;
      for (let column = 0; column <= stop; column++) this.pen.fillRect(LEFT + column, top(column), 1, height(column));
    };
    bars("#ccc", (column) => y(most[column]), (column) => y(least[column]) - y(most[column]));
    for (const line of [most, least]) bars(INK, (column) => y(line[column]) - 0.7, () => 1.4);
    this.write(`from the least to the most that one of the ${ranks} ranks holds`, LEFT + this.width / 2, y(0) - 8, { align: "center", font: SMALL });
  }

  drawCap({ cap, end_s, breaches }, y) {
    Object.assign(this.pen, { strokeStyle: this.style.cap, lineWidth: 1.6 });
    this.pen.setLineDash([6, 4]);
    this.pen.beginPath();
    this.pen.moveTo(this.x(0), y(cap));
    this.pen.lineTo(this.x(end_s), y(cap));
    this.pen.stroke();
    this.pen.setLineDash([]);
    this.pen.beginPath();
    for (const [time, amount] of breaches) {
      const [x, middle] = [this.x(time), y(amount)];
      for (const slope of [-1, 1]) this.pen.moveTo(x - 4, middle - 4 * slope), this.pen.lineTo(x + 4, middle + 4 * slope);
    }
    this.pen.stroke();
  }

  // what the pointer and the keys do

  zoom(factor, around = (this.range[0] + this.range[1]) / 2) {
    this.look(around - (around - this.range[0]) / factor, around + (this.range[1] - around) / factor);
  }

  pan(share) {
    const [from, to] = this.range;
    this.look(from + share * (to - from), to + share * (to - from));
  }

  listen() {
    const { canvas } = this, whole = () => this.look(0, this.end);
    const keys = { "+": () => this.zoom(ZOOM_STEP), "=": () => this.zoom(ZOOM_STEP), "-": () => this.zoom(1 / ZOOM_STEP), 0: whole, Home: whole, Escape: whole,
                   ArrowLeft: () => this.pan(-PAN_STEP), ArrowRight: () => this.pan(PAN_STEP) }; // prettier-ignore
    canvas.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation(); // else JupyterLab takes it for a command
      keys[event.key]();
    });
    this.reset.addEventListener("click", whole);
    canvas.addEventListener("dblclick", whole);
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => (this.pressed ? this.drag(event) : this.hover(event)));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => this.release(null));
    canvas.addEventListener("pointerleave", () => this.hover(null));
    this.model.on("change:serial", (this.changed = () => this.show()));
    this.watch = new ResizeObserver(() => this.request());
    this.watch.observe(this.frame);
  }

  stop() {
    this.model.off("change:serial", this.changed);
    this.watch.disconnect();
  }

  /** Without the focus the wheel scrolls the page, as it would anywhere else. */
  wheel(event) {
    const out = event.deltaY > 0 && !this.zoomed();
    if (out || !(event.ctrlKey || document.activeElement === this.canvas)) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(((event.deltaX || event.deltaY) / this.width) * 1.5);
    else this.zoom(ZOOM_STEP ** (-event.deltaY / 100), this.time(event.offsetX));
  }

  press(event) {
    if (event.button !== 0) return;
    this.hover(null);
    this.canvas.setPointerCapture(event.pointerId);
    this.pressed = { x: event.offsetX, pan: event.shiftKey, range: this.range };
  }

  drag(event) {
    const { x, pan, range } = this.pressed, [from, to] = range;
    if (pan) {
      const by = ((x - event.offsetX) / this.width) * (to - from);
      this.look(from + by, to + by);
    } else Object.assign(this.selection.style, { display: "block", left: `${Math.min(x, event.offsetX)}px`, width: `${Math.abs(x - event.offsetX)}px` });
  }

  release(event) {
    const { x, pan } = this.pressed ?? {};
    this.pressed = undefined;
    this.selection.style.display = "none";
    if (event && x !== undefined && !pan && Math.abs(event.offsetX - x) >= CLICK) this.look(...[x, event.offsetX].map((at) => this.time(at)).sort((a, b) => a - b));
  }

  hover(event) {
    const text = event && this.describe(event.offsetX, event.offsetY);
    this.tip.style.display = text ? "block" : "none";
    if (!text) return;
    this.tip.textContent = text;
    const left = Math.min(event.offsetX + 14, this.frame.clientWidth - this.tip.offsetWidth - 4);
    Object.assign(this.tip.style, { left: `${left}px`, top: `${event.offsetY + 16}px` });
  }

  /** What lies at a point of the picture, as text. */
  describe(x, y) {
    const time = this.time(x), at = ({ top, strip }) => y >= top && y < strip + STRIP;
    const plot = this.plots?.find(at);
    if (!plot || x < LEFT || time < 0 || time > plot.panel.end_s) return "";
    if (y < plot.top + plot.height) return this.describeBox(plot.panel, Math.floor((y - plot.top) / plot.row), time);
    return y >= plot.strip ? this.describeMemory(plot.panel, time) : "";
  }

  /** The op at `time` (a pair: both), or how long its rank is idle there and what comes after. */
  describeBox(panel, rank, time) {
    const boxes = panel.rows[rank], next = countUpTo(time, boxes.length, (at) => panel.start[boxes[at]]);
    const under = [...boxes.subarray(Math.max(next - 2, 0), next)].filter((box) => panel.end[box] > time);
    const span = (from, to) => `${ms(from, panel.end_s)} to ${ms(to, panel.end_s)} ms (${ms(to - from, panel.end_s)} ms)`;
    const op = (box) => {
      const [stage, microbatch] = panel.parts(box), meaning = this.style.meaning[panel.kind(box)];
      const text = `${panel.name(box)}: ${meaning} of microbatch ${microbatch}, stage ${stage}, rank ${rank}`;
      return `${text}\n${span(panel.start[box], panel.end[box])}${panel.strong?.has(box) ? ", on the critical path" : ""}`;
    };
    if (under.length) return under.map(op).join("\n");
    const after = next < boxes.length ? `, before ${panel.name(boxes[next])}` : "";
    return `rank ${rank} idle${after}\n${span(next ? panel.end[boxes[next - 1]] : 0, after ? panel.start[boxes[next]] : panel.end_s)}`;
  }

  /** What the ranks hold at `time`; of many, the one that holds most and the one that holds least. */
  describeMemory(panel, time) {
    if (!panel.peak) return "";
    const held = panel.curves.map(({ times, amounts }, rank) => [rank, amounts[Math.max(countUpTo(time, times.length, (at) => times[at]) - 1, 0)]]);
    const sorted = [...held].sort((a, b) => b[1] - a[1]), shown = this.coloured(panel) ? held : [sorted[0], sorted.at(-1)];
    return `${ms(time, panel.end_s)} ms: ${panel.memory_label.replace("\n", " ")}\n${shown.map(([rank, amount]) => `rank ${rank}: ${Number(amount.toPrecision(4))}`).join("\n")}`;
  }
}

export default {
  render({ model, el }) {
    const timeline = new Timeline(model, el);
    return () => timeline.stop();
  },
};

/** The page's texts. */

export const TEXTS = {
  en: {
    title: "Pipeline schedules, simulated in your browser",
    lead: "Move a slider: both schedules are simulated anew, by the same Python code that predicts real runs. Nothing is installed and nothing leaves this machine.",
    schedule: "schedule", beside: "below it", none: "none", stages: "stages", microbatches: "microbatches",
    chunks: "chunks a rank", forward: "forward, ms", backward: "backward, ms", link: "link latency, ms",
    step: "step time", bubble: "bubble (idle / makespan)", peak: "peak activations",
    held: "microbatches", heldOne: "microbatch", loading: "Loading the simulator", starting: "Starting Python",
    live: "Live", recorded: "Recorded picture. ", failed: "The simulator could not be started",
    broken: "The simulator could not answer", missing: "The page could not be loaded; try again",
    simulated: "Simulated",
    copy: "Copy link", copied: "Copied", refused: "Not possible", colon: ": ",
    noChunks: "Neither schedule lets you choose its number of chunks.",
    how: "How to read the picture",
    about: [
      "Each row is a rank (a GPU or a group of GPUs) and time runs to the right. A box is one op of one microbatch, whose number it carries: F is the forward, B the backward, which some schedules divide into I (the gradient of the input) and W (the gradient of the weights).",
      "Hatched time is idle: the rank waits for a result of another one. Point at a box or at idle time to read what it waited for, click to keep the text, and use the arrow keys to go from op to op. Drag to zoom.",
      "Where a rank has several stages, the shades tell its chunks apart. Below the rows stand the activations that each rank holds, in microbatches of its share of the model.",
      "Forward and backward are the times of a rank's whole share of the model; its chunks divide them equally. Half of the backward is I and half is W.",
    ],
  },
  zh: {
    title: "流水线调度，在你的浏览器里仿真",
    lead: "拖动滑块，两个调度会立即重新仿真，用的正是预测真实训练的那份 Python 代码。无需安装，数据不离开本机。",
    schedule: "调度", beside: "对比", none: "无", stages: "stage 数", microbatches: "micro-batch 数",
    chunks: "每个 rank 的 chunk 数", forward: "前向，ms", backward: "反向，ms", link: "链路延迟，ms",
    step: "一步时间", bubble: "气泡（空闲 / 总时长）", peak: "激活峰值",
    held: "个 micro-batch", heldOne: "个 micro-batch", loading: "正在加载仿真器", starting: "正在启动 Python",
    live: "实时", recorded: "预录的图。", failed: "仿真器无法启动",
    broken: "仿真器无法回答", missing: "页面无法加载，请重试",
    simulated: "仿真",
    copy: "复制链接", copied: "已复制", refused: "无法执行", colon: "：",
    noChunks: "这两个调度都不能选择 chunk 数。",
    how: "怎样读这张图",
    about: [
      "每一行是一个 rank（一块或一组 GPU），时间向右。一个方块是一个 micro-batch 的一个 op，方块里的数字是 micro-batch 的编号：F 是前向，B 是反向；有些调度把反向分成 I（输入梯度）和 W（权重梯度）。",
      "斜线部分是空闲：这个 rank 在等别的 rank 的结果。把鼠标指向方块或空闲处，可以看到它在等什么；点击可固定说明，方向键可逐个 op 移动，拖动可放大。",
      "一个 rank 有多个 stage 时，用颜色深浅区分它的 chunk。行的下方是每个 rank 保存的激活，单位是它那一份模型的 micro-batch。",
      "前向和反向是一个 rank 全部份额的时间，它的各个 chunk 平分。反向的一半是 I，一半是 W。",
    ],
  },
}; // prettier-ignore

export type Words = typeof TEXTS.en;

/** What the page and its worker say to each other. */

import type { Words } from "../chart/data";
import type { State } from "../explorer/data";
import type { Packed } from "../timeline/panel";

export type Request = PipelineRequest | { explorer: string; state: State } | DrillRequest;

/** As `simlab.lessons.drill.page` takes it. */
export interface DrillRequest {
  do: "begin" | "go_on" | "answer" | "ask" | "stop";
  tongue: string;
  kind?: string;
  progress?: string;
  texts?: Record<string, string>;
  hints?: number;
}

export interface PipelineRequest {
  schedules: string[];
  stages: number;
  microbatches: number;
  chunks: number;
  forward_ms: number;
  backward_ms: number;
  link_ms: number;
}

export interface Figures {
  name: string;
  step_s: number;
  idle_over_makespan: number;
  peak: number;
}

export interface Answer {
  panels: Packed[];
  figures: Figures[];
  refused: [string, Words][]; // schedules, and why they have no step
}

/** What the worker says; `Got` is the answer to what its page asks for. */
export type FromWorker<Got = Answer> =
  | { kind: "progress"; share: number; starting: boolean }
  | { kind: "ready"; loaded: string[] } // the addresses of what Python consists of
  | { kind: "answer"; answer: Got }
  | { kind: "failed"; why: string };

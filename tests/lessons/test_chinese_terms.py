"""One concept has one Chinese term, in the lessons, the explorers, the pages and the glossary."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = {
    "simlab/lessons/words/zh": "*.toml",
    "simlab/explorers": "**/*.py",
    "simlab/views": "*.*",
    "web/src": "**/*.ts",
    "web/site": "**/*.*",
    "notebooks": "*.*",
    "docs": "*.md",
    ".": "README*.md",
}
SKIPPED = {"node_modules", "__pycache__", "dist"}
# what engineers say: what they would not say, or would say of the same thing elsewhere
CHOSEN = {
    "micro-batch": "微批|小批次",
    "仿真": "模拟",
    "气泡": "空泡",
    "流水线": "管道|管线",
    "节点": "结点",
    "归约": "规约",
    "all-reduce": "全归约",
    "reduce-scatter": "归约散射",
    "all-gather": "全收集",
    "all-to-all": "全交换",
    "ring, tree": "环形|树形",
    "stage": '阶段数|跨阶段|流水线阶段|各阶段的层|发往阶段|"阶段"',
    "op": "逐操作|逐个操作|操作表",
    "chunk": "模型块|虚拟阶段|块数",
    "激活": "激活值",
    "重计算": "(?<!权)重算",
    "全量重计算": "完全重计算|全部重计算",
    "box": "盒子",
    "checkpoint": "(?<!激活|梯度)检查点",
    "offload": "卸载",
    "embedding": "嵌入",
    "输出头": "输出层",
    "global batch": "全局 ?batch|全局批",
    "总时长": "总完成时间|总时间|空闲 ?/ ?整步",
    "一步时间": "(?<![整每一各])步时间",
    "hang": "卡死|挂死",
    "trace": "轨迹",
    "kernel": "核函数|内核",
    "暴露的": "未被(掩盖|隐藏)",
    "掩盖": "藏住|藏得住|藏不住|藏在.{0,8}计算|被隐藏",
    "预测": "预估",
    "指令清单": "指令表",
    "通信组": "通信域",
    "分片": "切片",
    "ZeRO 阶段": r"ZeRO 级|每升?一级|逐级变重|第 [\d、{}a-z]+ 级|最低一级|某一级",
    "方案": "并行计划|并行配置",
    "64 块 GPU": r"\d 个 (GPU|[HA]100)(?! 节点)|张 (GPU|[HA]100)",
    "闭式公式": "闭式(?!公式|的)",
    "单元格": "这个单元(?!格)",
    "持有": "留住",
    "程序": "调度程序",
    "下降（lowering）": "下译",
}
HAN = re.compile(r"[\u4e00-\u9fff]")


def chinese_lines():
    """[(file, line)] of all lines with Chinese."""
    found = []
    for folder, pattern in PLACES.items():
        for path in sorted((ROOT / folder).glob(pattern)):
            if not SKIPPED.isdisjoint(path.parts) or not path.is_file():
                continue
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            found += [(str(path.relative_to(ROOT)), line) for line in lines if HAN.search(line)]
    return found


LINES = chinese_lines()


def test_all_places_have_chinese():
    files = {path for path, _ in LINES}
    for folder in PLACES:
        assert any(path.startswith(folder.lstrip(".")) for path in files), folder
    assert len(files) > 50


@pytest.mark.parametrize("chosen", CHOSEN)
def test_a_concept_has_one_term(chosen):
    rejected = re.compile(rf".{{0,12}}({CHOSEN[chosen]}).{{0,12}}")
    wrong = {(path, found[0]) for path, line in LINES for found in rejected.finditer(line)}
    assert wrong == set()


@pytest.mark.parametrize("chosen", CHOSEN)
def test_the_term_chosen_is_not_rejected_itself_and_is_used(chosen):
    assert not any(re.search(pattern, chosen) for pattern in CHOSEN.values())
    used = [term for term in chosen.split(", ") if any(term in line for _, line in LINES)]
    assert used == chosen.split(", ")

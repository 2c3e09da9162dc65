"""The table that a probe hands back."""

import math

import numpy as np
import pytest
import torch

from attnbook.probes import Table

TABLE = Table(
    ("name", "layer", "part", "rms"),
    (
        ("embedding", None, "embedding", 2.0),
        ("h.0.attn", 0, "attn", 1.0),
        ("h.0.mlp", 0, "mlp", math.nan),
        ("h.1.attn", 1, "attn", 123.456),
        ("h.1.mlp", 1, "mlp", 0.00012345),
    ),
)


def test_columns_and_rows():
    assert TABLE["rms"].dtype == np.float64
    assert TABLE["name"].tolist()[0] == "embedding"
    assert np.isnan(TABLE["layer"][0])
    assert TABLE.where(layer=[0, 1])["layer"].dtype == np.int64
    assert TABLE.parts == ["embedding", "attn", "mlp"]
    assert TABLE.layers == [0, 1]
    assert next(iter(TABLE)) == dict(zip(TABLE.columns, TABLE.rows[0], strict=True))
    assert len(TABLE) == 5
    with pytest.raises(KeyError, match="no column 'sd', only name, layer, part, rms"):
        TABLE["sd"]


def test_where():
    assert TABLE.where(part="a*", layer=1)["rms"].tolist() == [123.456]
    assert len(TABLE.where(part=["attn", "mlp"])) == 4
    assert len(TABLE.where(layer=range(1, 5))) == 2
    assert len(TABLE.where(layer=np.argmax([0.1, 0.2]))) == len(TABLE.where(layer=1))
    assert len(TABLE.where(layer=torch.tensor([0.1, 0.2]).argmax())) == len(TABLE.where(layer=1))
    assert len(TABLE.where(layer=None)) == 1
    assert len(TABLE.where()) == 5
    with pytest.raises(ValueError, match="no part is 'ffn'; there are embedding, attn, mlp"):
        TABLE.where(part="ffn")
    with pytest.raises(ValueError, match="no layer is 1; there are 0"):
        TABLE.where(name="h.0.*", layer=1)
    with pytest.raises(KeyError, match="no column 'parts'"):
        TABLE.where(parts="mlp")


def test_text():
    assert str(TABLE).splitlines() == [
        "name       layer  part            rms",
        "embedding      –  embedding         2",
        "h.0.attn       0  attn              1",
        "h.0.mlp        0  mlp             nan",
        "h.1.attn       1  attn            123",
        "h.1.mlp        1  mlp        0.000123",
    ]
    assert repr(TABLE) == "<Table of 5 rows: name, layer, part, rms>"
    html = TABLE._repr_html_()
    assert html.startswith("<table><tr><th>name</th>")
    assert html.count("<tr>") == 6
    assert "<td>0.000123</td>" in html


def test_note_is_shown():
    noted = Table(("name",), (("a",),), "not read: <b>").where(name="a")
    assert str(noted).splitlines()[-1] == "not read: <b>"
    assert repr(noted) == "<Table of 1 rows: name; not read: <b>>"
    assert "<p>not read: &lt;b&gt;</p>" in noted._repr_html_()


def test_plot():
    ax = TABLE.plot("rms")
    lines = {line.get_label(): line.get_xydata().tolist() for line in ax.get_lines()}
    assert list(lines) == ["attn", "mlp"]
    assert lines["attn"] == [[0, 1], [1, 123.456]]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == ("layer", "rms", "log")
    ax.clear()
    assert TABLE.where(name=["h.0.attn", "embedding"]).plot("rms", ax=ax) is ax
    assert ax.get_yscale() == "linear"
    for table, column in ((TABLE, "name"), (TABLE.where(layer=None), "rms")):
        with pytest.raises(ValueError, match=f"'{column}' holds no finite number in a layer"):
            table.plot(column)

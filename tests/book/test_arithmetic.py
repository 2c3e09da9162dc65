import pytest
import torch
import torch.nn.functional as F

from book.evidence.arithmetic import arithmetic


def test_it_is_the_same_each_time_and_on_two_threads():
    once = arithmetic()
    torch.set_num_threads(2)
    torch.manual_seed(7)
    assert arithmetic() == once
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_last_bit_makes_another(dtype, monkeypatch):
    once, gelu = arithmetic(), F.gelu

    def other(x):
        y = gelu(x)
        if x.dtype == dtype:
            y[3, 4] = torch.nextafter(y[3, 4], y[3, 5])
        return y

    monkeypatch.setattr(F, "gelu", other)
    assert arithmetic() != once


def test_another_kind_of_processor_is_another(monkeypatch):
    once = arithmetic()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ALTIVEC")
    assert arithmetic() != once

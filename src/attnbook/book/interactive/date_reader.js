attnbookFigures.compute.date_reader = (settings, { phrases }, { range }) => {
  const { text, iso, answer, sure, steps } = phrases[settings.phrase], { cut } = settings;
  const at = Math.min(settings.at, steps.length - 1), step = steps[at], n = text.length;
  const top = cut ? step.cut : step.top, [[token, p]] = step.top, [[next]] = top;
  const quoted = (what) => (what.length > 1 ? `the ${what}` : `“${what}”`);
  const w = Math.max(...step.weights), best = step.weights.indexOf(w);
  const wide = Math.min(24, 408 / n), read = (f) => range(24).map(f), write = (f) => range(11).map(f);
  const x = read((k) => 215 + wide * (k + 0.5 - n / 2));
  const reads = read((k) => (text[k] ?? "").replace(" ", "·"));
  const begun = answer.slice(0, at), written = [...begun, next], due = [...iso, "end"];
  return {
    now: at, wide, x, reads, w, top, answer, sure, p,
    lefts: x.map((each) => each - wide / 2),
    here: read((k) => k < n),
    weights: read((k) => step.weights[k] ?? 0),
    edge: read((k) => (k === best) * (1 + cut)),
    x_best: x[best],
    writes: write((k) => written[k] ?? ""),
    wrong: write((k) => iso !== "" && k <= at && due[k] !== written[k]),
    verdict: !iso ? "no single right answer" : answer === iso ? "✓ correct" : `✗ correct: ${iso}`,
    after: at ? `After “${begun}”` : "First",
    token: quoted(token), whom: reads[best], place: best + 1,
    p_cut: step.p_cut, instead: quoted(next), case: !cut ? "whole" : step.p_cut === p ? "same" : "cut",
  };
};

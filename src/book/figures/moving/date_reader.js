attnbookFigures.compute.date_reader = (settings, { phrases, trained }, { range }) => {
  const { text, iso, answer, sure, steps } = phrases[settings.phrase], { cut } = settings;
  const at = Math.min(settings.at, steps.length - 1), step = steps[at], n = text.length;
  const top = cut ? step.cut : step.top, [[token, p]] = step.top, [[next, p_next]] = top;
  const quoted = (what) => (what.length > 1 ? `the ${what}` : `“${what}”`);
  const w = Math.max(...step.weights), best = step.weights.indexOf(w), wide = Math.min(24, 416 / n);
  const read = (f) => range(24).map(f), write = (f) => range(11).map(f);
  const lefts = read((k) => 220 + wide * (k - n / 2)), x = lefts.map((left) => left + wide / 2);
  const reads = read((k) => (text[k] ?? "").replace(" ", "·"));
  const begun = answer.slice(0, at), written = [...begun, next], due = [...iso, "end"];
  return {
    now: at, wide, lefts, x, reads, w, top, answer, sure, trained, p, p_next,
    here: read((k) => k < n),
    weights: read((k) => step.weights[k] ?? 0),
    edge: read((k) => (k === best) * (1 + cut)),
    x_best: x[best],
    writes: write((k) => written[k] ?? ""),
    wrong: write((k) => iso !== "" && k <= at && due[k] !== written[k]),
    verdict: !iso ? "no single correct answer" : answer === iso ? "✓ correct" : `✗ it is ${iso}`,
    after: at ? `After “${begun}”` : "First",
    token: quoted(token), whom: reads[best], place: best + 1,
    p_cut: step.p_cut, instead: quoted(next),
    case: !cut ? "whole" : next === token ? "same" : "cut",
  };
};

attnbookFigures.compute.training_scrubber = ({ step }, data, { range }) => {
  const { steps, pairs, names, tokens, right, words_loss, heads_loss } = data;
  const at = steps.indexOf(step), last = steps.length - 1, x = data.x[at], y = data.y[at];
  const n = tokens.length, top = Math.ceil(Math.max(...words_loss, ...heads_loss));
  const padded = (list, length, by) => range(length).map((i) => list[i] ?? by);
  const lines = (of) => [pairs.slice(0, 2), pairs.slice(2)].map((pair) => pair.map((k) => of[k]));
  return {
    x: padded(x, 40, 9), y: padded(y, 40, 9),
    pair_x: pairs.map((k) => x[k]), pair_y: pairs.map((k) => y[k]), line_x: lines(x), line_y: lines(y),
    names, labels: data.labels[at], cosines: data.cosines.map((each) => each[at]),
    n, places: range(16).map((i) => ((i + 0.5) * 208) / n), tokens: padded(tokens, 16, ""),
    weights: range(16).map((i) => padded(data.weights[at][i] ?? [], 16, 0)),
    right: padded(right, 16, [99, 99]), looked: data.looked[at],
    words_loss: words_loss[at], heads_loss: heads_loss[at],
    curves: [words_loss, heads_loss].map((losses) => losses.map((loss) => loss / top)),
    across: steps.map((_, i) => i / last),
    now: [at / last, words_loss[at] / top, heads_loss[at] / top], top,
    ticks: [1, 2].map((third) => Math.round((third * last) / 3)).map((i) => [i / last, steps[i]]),
    ends: [steps[0], steps[last]],
  };
};

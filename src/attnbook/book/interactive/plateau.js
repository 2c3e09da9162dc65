attnbookFigures.compute.plateau = ({ size }, { keys, steps, losses, every, measured, longer }, { range }) => {
  const sizes = [0.01, 0.0333, 0.1, 0.1667, 0.3333, 0.5, 0.7071, 1, 1.4142, 2, 2.8284, 4];
  const at = sizes.indexOf(size), mine = steps[at], curves = losses[at], usual = steps[7];
  const learned = mine.filter((n) => n < 300);
  return {
    place: Math.log10(size), places: sizes.map(Math.log10),
    keys, keys_here: keys[at],
    by_model: range(8).map((i) => steps.map((each) => each[i])),
    steps: mine, done: mine.map((n) => n < 300),
    curves, times: curves.map((curve) => curve.map((_, i) => every * (i + 0.5))),
    last: curves.map((curve) => curve.at(-1)),
    n_done: learned.length, first: Math.min(300, ...learned), slowest: learned.length ? Math.max(...learned) : 300,
    usual_first: Math.min(...usual), usual_slowest: Math.max(...usual),
    usual_span: Math.max(...usual) - Math.min(...usual),
    measured, longer, case: learned.length === 8 ? "all" : "some",
  };
};

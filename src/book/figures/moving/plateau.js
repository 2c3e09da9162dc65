attnbookFigures.compute.plateau = ({ size }, { steps, medians, keys }) => {
  const sizes = [0.01, 0.0333, 0.1, 0.1667, 0.3333, 0.5, 0.7071, 1, 1.4142, 2, 2.8284, 4];
  const at = sizes.indexOf(size), begin = Math.min(at, 7), done = steps[at].map((n) => n < 300);
  return {
    asked: size >= 1, place: Math.log10(size), places: sizes.slice(begin).map(Math.log10),
    curve: medians.slice(begin), median: medians[at], steps: steps[at], keys: keys[at],
    done, n_done: done.filter(Boolean).length,
    case: size === 1 ? "glorot" : size < 1 ? "small" : "large",
  };
};

attnbookFigures.compute.text_scrubber = ({ step, how }, data) => {
  const { steps, losses, shown, yardsticks: [, unigram, bigram] } = data, at = shown.indexOf(step);
  const lines = data[how][at], loss = data.shown_losses[at], bits = data.bits[at];
  const found = lines.join("").match(/[a-z]{3,}/gi) ?? [];
  return {
    ...data, loss, bits, lines,
    roots: steps.map(Math.sqrt), root: Math.sqrt(step),
    ticks: [1, 2, 3, 4].map((n) => (loss / bits) * n),
    here: shown.map((n) => n === step),
    found: found.length, different: new Set(found).size,
    passes: steps.find((_, i) => losses[i] < bigram),
    case: loss >= unigram ? "less" : loss >= bigram ? "single" : "pairs",
  };
};

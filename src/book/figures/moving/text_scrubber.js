attnbookFigures.compute.text_scrubber = ({ step, how }, { shown, losses, tables, depths, ...texts }) => {
  const at = shown.indexOf(step), loss = losses[at];
  return {
    tables, depths, loss, lines: texts[how][at],
    case: loss >= tables[1] ? "less" : loss >= tables[2] ? "single" : "pairs",
  };
};

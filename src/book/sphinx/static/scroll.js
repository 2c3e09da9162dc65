// What is wider than its box scrolls: it fades where there is more, and is in reach of the keyboard.
document.addEventListener("DOMContentLoaded", () => {
  const boxes = ".equation > .formula, .formula.wide, .highlight pre, .cell_output > .output, .pst-scrollable-table-container";
  // First all is read, then all is written, and what is folded waits until it is opened: otherwise
  // each box lays the page out once more.
  const look = (events) => {
    const seen = events.map(({ target }) => target).filter((box) => box.checkVisibility())
      .map((box) => [box, box.scrollLeft, box.scrollWidth - box.clientWidth]);
    for (const [box, left, room] of seen) {
      box.classList.toggle("more-left", left > 1);
      box.classList.toggle("more-right", left < room - 1);
      if (room > 0) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  const observer = new ResizeObserver(look);
  for (const box of document.querySelectorAll(boxes)) {
    observer.observe(box);
    box.addEventListener("scroll", (event) => look([event]), { passive: true });
  }
});

// Rows that have what is chosen in every list; a chapter without any goes.
(() => {
  const start = () => {
    const form = document.querySelector(".choices");
    form?.addEventListener("change", () => {
      for (const chapter of document.querySelector("table.exercises").tBodies) {
        const rows = [...chapter.rows].slice(1);
        for (const row of rows) {
          row.hidden = [...form.elements].some(({ name, value }) => value && row.dataset[name] !== value);
        }
        chapter.hidden = rows.every((row) => row.hidden);
      }
    });
  };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else start();
})();

// The reader of dates: what it writes for a typed phrase, and where it looks for each character.
live.start.dates = (element) => {
  const START = 1, END = 2, UNKNOWN = 3, LONGEST = 40, MOST = 12, DAY = 9;  // its second digit
  const { weights, characters } = live.files.dates, model = new live.Model(weights);
  const names = ["padding", "start", "end", "�", ...characters];
  const shown = (character) => (character === " " ? "·" : character);
  const KNOWN = { "en-US": "English (US)", "en-GB": "English (UK)", de: "German", fr: "French", es: "Spanish", it: "Italian", nl: "Dutch", sv: "Swedish", pl: "Polish", tr: "Turkish", ru: "Russian", ja: "Japanese" };
  const NEW = { nb: "Norwegian", pt: "Portuguese", cs: "Czech", fi: "Finnish", el: "Greek", ko: "Korean", hu: "Hungarian" };
  const options = (languages) => Object.entries(languages).map(([code, name]) => `<option value="${code}">${name}</option>`).join("");

  element.querySelector(".live-body").innerHTML = `
    <p class="live-more">or let the browser write one in
      <select aria-label="Language"><optgroup label="It has learned">${options(KNOWN)}</optgroup><optgroup label="It has never seen">${options(NEW)}</optgroup></select>
      <button type="button" name="another">Another date</button></p>
    <div class="live-reading">
      <svg class="live-ribbons" aria-hidden="true"></svg>
      <p class="live-label" id="live-reads">It reads <small>Press a character to cut its edge to the one that is written.</small></p>
      <div class="live-row live-phrase" role="group" aria-labelledby="live-reads"></div>
      <p class="live-label" id="live-writes">It writes</p>
      <div class="live-row live-answer" role="group" aria-labelledby="live-writes"></div>
    </div>
    <p class="live-said" role="status"></p>
    <div class="live-likely"></div>
    <div class="live-controls">
      <button type="button" name="play">▶ Play</button>
      <button type="button" name="back" aria-label="Character before">‹</button>
      <button type="button" name="next" aria-label="Next character">›</button>
      <fieldset class="live-more"><legend>Heads that look at the phrase</legend>${[1, 2, 3, 4].map((n) => `<label><input type="checkbox" value="${n - 1}" checked> ${n}</label>`).join("")}</fieldset>
      <button type="button" name="mend" class="live-more">Undo all</button>
    </div>`;
  const part = (selector) => element.querySelector(selector);
  const input = part(".live-ask input"), phrase = part(".live-phrase"), answer = part(".live-answer");
  const heads = [...element.querySelectorAll("fieldset input")];
  let due = { text: "mardi 5 mars 2024", iso: "2024-03-05" };  // what the browser wrote
  let cuts = new Set(), at = DAY, steps = [], playing = 0;

  /** Everything that the model computes for the phrase, the cuts and the heads of now. */
  const read = (text) => {
    const ids = [...text].map((each) => (names.indexOf(each, 4) < 0 ? UNKNOWN : names.indexOf(each, 4)));
    const memory = model.encode(ids), cache = model.newCache();
    const on = (head) => heads[head].checked, many = heads.filter((each) => each.checked).length;
    for (let id = START; id !== END && steps.length < MOST; ) {
      const step = steps.length, seen = (j) => !cuts.has(`${step} ${j}`);
      const { logits, weights } = model.decode(id, cache, memory, { seen, on });
      const p = live.softmax(logits);
      id = p.indexOf(Math.max(...p));
      const mean = ids.map((_, j) => weights.reduce((sum, each, head) => sum + on(head) * each[j], 0) / many);
      steps.push({ id, p, weights: mean });
    }
  };

  /** Ribbons from the phrase to the character that is written, as wide as the weights. */
  const tie = () => {
    const ribbons = part(".live-ribbons"), to = answer.children[at];
    if (!input.value || !to) return ribbons.replaceChildren();
    const frame = ribbons.getBoundingClientRect(), end = to.getBoundingClientRect();
    const x = end.x + end.width / 2 - frame.x, y = end.y - frame.y;
    ribbons.innerHTML = [...phrase.children].map((cell, j) => {
      const from = cell.getBoundingClientRect(), w = steps[at].weights[j];
      const x0 = from.x + from.width / 2 - frame.x, y0 = from.bottom - frame.y, middle = (y0 + y) / 2;
      return w < 0.02 ? "" : `<path d="M${x0} ${y0}C${x0} ${middle} ${x} ${middle} ${x} ${y}" stroke-width="${Math.max(1, 18 * w)}"/>`;
    }).join("");
  };
  /** What it cannot know. */
  const comments = (text, written) => {
    const years = text.match(/\d{4}/g) ?? [], [year, month, day] = written.split("-").map(Number);
    return [
      years.some((each) => each < 1950 || each > 2049) && "It was trained on the years from 1950 to 2049.",
      day && new Date(Date.UTC(year, month - 1, day)).getUTCDate() !== day && "There is no such day.",
      text.length === LONGEST && `It reads ${LONGEST} characters and no more.`,
    ].filter(Boolean).map((each) => ` ${each}`).join("");
  };

  const draw = () => {
    const changed = cuts.size || heads.some((each) => !each.checked);
    part("[name=play]").disabled = !steps.length;
    part("[name=back]").disabled = at === 0;
    part("[name=next]").disabled = at >= steps.length - 1;
    part("[name=mend]").disabled = !changed;
    if (!steps.length) {
      for (const row of [phrase, answer, part(".live-likely"), part(".live-ribbons")]) row.replaceChildren();
      part(".live-said").textContent = "Type a date.";
      return;
    }
    const text = [...input.value], step = steps[at];
    const heaviest = step.weights.indexOf(Math.max(...step.weights));
    phrase.replaceChildren(...text.map((character, j) => {
      const cut = cuts.has(`${at} ${j}`), cell = document.createElement("button");
      Object.assign(cell, { type: "button", textContent: shown(character), title: live.percent(step.weights[j]) });
      cell.style.setProperty("--weight-here", step.weights[j].toFixed(3));
      cell.setAttribute("aria-pressed", cut);
      cell.setAttribute("aria-label", `${character === " " ? "space" : character}, ${cut ? "edge cut" : live.percent(step.weights[j])}`);
      cell.classList.toggle("live-unknown", names.indexOf(character, 4) < 0);
      return cell;
    }));
    answer.replaceChildren(...steps.map(({ id, p }, k) => {
      const cell = document.createElement("button");
      Object.assign(cell, { type: "button", textContent: id < 4 ? names[id] : shown(names[id]), title: live.percent(p[id]) });
      cell.setAttribute("aria-label", `${names[id]}, ${live.percent(p[id])}`);
      if (k === at) cell.setAttribute("aria-current", "step");
      cell.classList.toggle("live-later", k > at);
      cell.classList.toggle("live-cut", [...cuts].some((edge) => edge.startsWith(`${k} `)));
      return cell;
    }));
    const likely = [...step.p.keys()].sort((a, b) => step.p[b] - step.p[a]).slice(0, 3).filter((id) => step.p[id] > 0.001);
    part(".live-likely").innerHTML = likely.map((id) =>
      `<span>${shown(names[id]).replace("<", "&lt;")}</span><span class="live-bar" style="--part: ${step.p[id].toFixed(4)}"></span><span>${live.percent(step.p[id])}</span>`).join("");
    const written = steps.filter(({ id }) => id > UNKNOWN).map(({ id }) => names[id]).join("");
    const sure = steps.reduce((product, { id, p }) => product * p[id], 1);
    const strange = [...new Set(text.filter((each) => names.indexOf(each, 4) < 0))];
    const whom = text[heaviest] === " " ? "a space" : `“${text[heaviest].replace("<", "&lt;")}”`;
    const verdict = input.value !== due.text || changed ? "" : written === due.iso ? " ✓ It is." : ` ✗ It is ${due.iso}.`;
    part(".live-said").innerHTML =
      `<strong>${written || "nothing"}</strong>, says the model, and is ${live.percent(sure)} sure of the whole.${verdict} ` +
      `For “${names[step.id]}” it looks most at ${whom} (${live.percent(step.weights[heaviest])}).` +
      comments(input.value, written) +
      (strange.length ? ` It has never seen ${strange.map((each) => `“${each.replace("<", "&lt;")}”`).join(", ")}.` : "") +
      (changed ? " The model was never trained with this." : "") +
      (cuts.size ? " A cut often changes little: the encoder has mixed neighbours already." : "");
    tie();
  };

  const again = () => {
    steps = [];
    if (input.value) read(input.value);
    at = Math.max(0, Math.min(at, steps.length - 1));
    draw();
  };
  const stop = () => {
    clearInterval(playing);
    playing = 0;
    part("[name=play]").textContent = "▶ Play";
  };
  const go = (to) => {
    at = Math.max(0, Math.min(to, steps.length - 1));
    draw();
  };
  const play = () => {
    if (playing) return stop();
    if (at === steps.length - 1) go(0);
    part("[name=play]").textContent = "❚❚ Pause";
    playing = setInterval(() => (at < steps.length - 1 ? go(at + 1) : stop()), 700);
  };

  input.addEventListener("input", () => {
    stop();
    cuts.clear();
    at = DAY;  // where one looked in another text says nothing of this one
    again();
  });
  heads.forEach((each) => each.addEventListener("change", () => {
    if (!heads.some(({ checked }) => checked)) each.checked = true;  // nothing to see with none
    again();
  }));
  part("[name=another]").addEventListener("click", () => {
    const language = part("select").value, dateStyle = ["full", "long", "medium"][Math.floor(3 * Math.random())];
    const day = new Date(Date.UTC(1950, 0, 1 + Math.floor(36525 * Math.random())));
    const text = new Intl.DateTimeFormat(language, { dateStyle, timeZone: "UTC" }).format(day);
    due = { text, iso: day.toISOString().slice(0, 10) };
    input.value = text;
    input.dispatchEvent(new Event("input"));
  });
  part("select").addEventListener("change", () => part("[name=another]").click());
  phrase.addEventListener("click", ({ target }) => {
    const j = [...phrase.children].indexOf(target), edge = `${at} ${j}`;
    if (j < 0) return;
    stop();
    if (!cuts.delete(edge) && [...phrase.children].some((_, k) => k !== j && !cuts.has(`${at} ${k}`))) cuts.add(edge);
    again();
    phrase.children[j].focus();
  });
  answer.addEventListener("click", ({ target }) => {
    const k = [...answer.children].indexOf(target);
    if (k < 0) return;
    stop();
    go(k);
    answer.children[k].focus();
  });
  part(".live-controls").addEventListener("click", ({ target }) => {
    if (target.name === "play") play();
    if (target.name === "back" || target.name === "next") {
      stop();
      go(at + (target.name === "next" ? 1 : -1));
    }
    if (target.name === "mend") {
      cuts.clear();
      heads.forEach((each) => (each.checked = true));
      again();
    }
  });
  again();
  new ResizeObserver(tie).observe(part(".live-reading"));
};

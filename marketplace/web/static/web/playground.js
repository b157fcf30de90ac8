// The playground: one message to one model, or to several side by side. Each lane streams one chat completion, with
// its tokens, its cost before and after, and its receipt.
"use strict";

(() => {
  const form = document.getElementById("playground");
  if (!form) return;
  const byId = (id) => document.getElementById(id);
  const run = byId("playground-run");
  const stop = byId("playground-stop");
  const errorBox = byId("playground-error");
  const MAX_TOKENS = 256;
  const REFRESH_BEFORE_MS = 60_000; // a token this close to its end is replaced first
  const QUOTE_AFTER_MS = 600; // of quiet, so that typing asks for no prices
  const RECEIPT_TRIES = 15; // a second apart: a stream that was left is settled from the replica's journal

  let token = null;
  let tokenEnds = 0;
  let abort = null;

  class Refusal extends Error {
    constructor(message, code, link) { super(message); this.code = code; this.link = link; }
  }

  async function readError(response) {
    try {
      const { error } = await response.json();
      return new Refusal(error.message, error.code);
    } catch {
      return new Refusal(`The server answered ${response.status}.`, null);
    }
  }

  async function bearer(signal) {
    if (token && Date.now() < tokenEnds - REFRESH_BEFORE_MS) return token;
    const csrf = form.querySelector("[name=csrfmiddlewaretoken]").value;
    const response = await fetch(form.dataset.tokenUrl, { method: "POST", headers: { "X-CSRFToken": csrf }, signal });
    if (!response.ok) throw await readError(response);
    const issued = await response.json();
    token = issued.token;
    tokenEnds = Date.now() + issued.expires_in * 1000;
    return token;
  }

  async function post(path, body, signal) {
    const headers = { Authorization: `Bearer ${await bearer(signal)}`, "Content-Type": "application/json" };
    const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
    if (response.ok) return response;
    if (response.status === 401) token = null;
    throw await readError(response);
  }

  // Server-sent events of a response body, as parsed JSON; "[DONE]" ends them.
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const parts = rest.split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
        if (data === "[DONE]") return;
        if (data) yield JSON.parse(data);
      }
    }
  }

  // Exact: nano-dollars never pass through a float.
  function usd(nano) {
    const digits = BigInt(nano).toString().padStart(10, "0");
    return `$${digits.slice(0, -9)}.${digits.slice(-9).replace(/0+$/, "").padEnd(2, "0")}`;
  }

  function link(href, text) {
    const a = document.createElement("a");
    a.href = href;
    a.textContent = text;
    return a;
  }

  function showErrors(errors) {
    errorBox.replaceChildren();
    for (const error of errors) {
      const line = document.createElement("p");
      line.append(error.message, " ");
      if (error.code === "insufficient_funds" || error.code === "insufficient_quota") {
        line.append(link(form.dataset.walletUrl, "Top up your wallet"));
      }
      if (error.code === "licence_not_accepted" || error.code === "access_not_granted") {
        line.append(link(error.page ?? location.pathname, "See the conditions"));
      }
      errorBox.append(line);
    }
    errorBox.hidden = errors.length === 0;
  }

  // Only what was filled in: every other setting is the model's own.
  function settings() {
    const found = {};
    for (const input of form.querySelectorAll("[data-setting]")) {
      if (input.value !== "" && input.validity.valid) found[input.dataset.setting] = Number(input.value);
    }
    return found;
  }

  class Lane {
    constructor(element) {
      this.element = element;
      this.answer = element.querySelector(".answer");
      this.prediction = null;
    }

    meter(name, value) { this.element.querySelector(`[data-meter=${name}]`).replaceChildren(value); }

    body() {
      const messages = [];
      // A model with a contract brings its instructions and settings along, and may take no system message.
      const system = this.element.dataset.system ? byId("playground-system")?.value.trim() : "";
      if (system) messages.push({ role: "system", content: system });
      messages.push({ role: "user", content: byId("playground-user").value });
      const free = this.element.dataset.contract ? {} : { max_tokens: MAX_TOKENS, temperature: 0, ...settings() };
      return { model: this.element.dataset.model, messages, ...free };
    }

    async quote(signal) {
      const asked = await (await post("/v1/quote", this.body(), signal)).json();
      const usual = asked.typical_nano_usd === null ? "" : `, usually ${usd(asked.typical_nano_usd)}`;
      this.meter("quote", `at most ${usd(asked.worst_case_nano_usd)}${usual}`);
    }

    showEnd(chunk) {
      if (chunk.usage) {
        this.meter("in", chunk.usage.prompt_tokens);
        this.meter("out", chunk.usage.completion_tokens);
        if (chunk.usage.cost_nano_usd != null) this.meter("cost", usd(chunk.usage.cost_nano_usd));
      }
      const receipt = chunk.intarsia && chunk.intarsia.receipt_id;
      if (receipt) this.showReceipt(receipt);
    }

    showReceipt(id) {
      this.meter("receipt", link(form.dataset.receiptsUrl + encodeURIComponent(id), `${id.slice(0, 8)}…`));
    }

    // A receipt is there once the charge is booked. A prediction that came to nothing has none.
    async findReceipt() {
      const id = this.prediction;
      for (let tries = 0; id && tries < RECEIPT_TRIES && this.prediction === id; tries++) {
        const found = await (await fetch(`${form.dataset.receiptsUrl}${encodeURIComponent(id)}/state`)).json();
        if (found.cost_nano_usd !== null) {
          this.meter("cost", usd(found.cost_nano_usd));
          return this.showReceipt(id);
        }
        this.meter("receipt", "coming …");
        await new Promise((done) => setTimeout(done, 1000));
      }
      if (this.prediction === id) this.meter("receipt", "nothing was charged");
    }

    async predict(signal) {
      this.answer.replaceChildren();
      this.answer.classList.add("running");
      for (const name of ["ttft", "in", "out", "cost", "receipt"]) this.meter(name, "–");
      this.prediction = null;
      try {
        const started = performance.now();
        const stream = { stream: true, stream_options: { include_usage: true } };
        const response = await post("/v1/chat/completions", { ...this.body(), ...stream }, signal);
        this.prediction = response.headers.get("x-intarsia-prediction");
        let pieces = 0;
        for await (const chunk of events(response.body)) {
          const text = chunk.choices?.[0]?.delta?.content;
          if (text) {
            if (!pieces++) this.meter("ttft", `${Math.round(performance.now() - started)} ms`);
            this.answer.append(text);
            this.meter("out", pieces);
          }
          this.showEnd(chunk);
          if (chunk.error) throw new Refusal(chunk.error.message, chunk.error.code);
        }
      } catch (error) {
        if (error instanceof Refusal) throw error;
        this.findReceipt().catch(() => {});
        throw new Refusal(
          error.name === "AbortError"
            ? "Stopped. Only the part that was delivered is charged; its receipt appears here."
            : "The connection was lost. If part of the answer arrived, it is charged; see Usage before you retry.",
          null,
        );
      } finally {
        this.answer.classList.remove("running");
      }
    }
  }

  const lanes = [...form.querySelectorAll(".lane")].map((element) => new Lane(element));

  let quoting = null;
  let quiet = null;
  function quoteSoon() {
    clearTimeout(quiet);
    quiet = setTimeout(() => {
      quoting?.abort();
      quoting = new AbortController();
      for (const lane of lanes) {
        if (!byId("playground-user").value.trim()) lane.meter("quote", "–");
        else lane.quote(quoting.signal).catch(() => {}); // a refusal is told when the message is sent
      }
    }, QUOTE_AFTER_MS);
  }
  form.addEventListener("input", quoteSoon);
  // Not before somebody looks at it: a visit of the page asks for no token and no price.
  form.addEventListener("focusin", quoteSoon, { once: true });

  form.addEventListener("submit", async (event) => {
    if (event.submitter && event.submitter !== run) return; // a button that saves the prompt
    event.preventDefault();
    if (abort) return;
    abort = new AbortController();
    run.disabled = true;
    stop.disabled = false;
    showErrors([]);
    const ends = await Promise.allSettled(lanes.map((lane) => lane.predict(abort.signal)));
    const errors = new Map();
    for (const end of ends) {
      if (end.status === "rejected") errors.set(end.reason.message, end.reason);
    }
    showErrors([...errors.values()]);
    abort = null;
    run.disabled = false;
    stop.disabled = true;
  });

  stop.addEventListener("click", () => abort && abort.abort());

  for (const button of form.querySelectorAll("[data-prompt]")) {
    button.addEventListener("click", () => {
      byId("playground-user").value = button.dataset.prompt;
      byId("playground-user").focus();
      quoteSoon();
    });
  }
})();

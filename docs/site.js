// The site's search is lunr's: a word that begins with "-" must not be on the page
// (https://lunrjs.com/guides/searching.html#term-presence). Readers of these pages search for flags, as --config-file.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const asked = message?.data;
  const sent = typeof asked === "string" ? { ...message, data: asked.replace(/(^|\s)--?(?=\w)/g, "$1") } : message;
  return post.call(this, sent, ...rest);
};

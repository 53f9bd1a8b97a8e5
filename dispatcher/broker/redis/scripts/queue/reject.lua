-- raw, reason, whether the id is known, id, token, code, counter, result list. With KEYS[2], a sorted set of the Go form:
-- raw is its member, and taken out of it. Answers 1, or 0 where another replica took it.
local raw, reason, known, id, token, code, as, list = unpack(ARGV, FIRST, FIRST + 7)
if KEYS[2] and call('ZREM', KEYS[2], raw) == 0 then
  return 0
end
bury(reason, known == '1' and id or nil, raw)
if known == '1' then
  local n = string.format('%012x', call('INCR', P .. 'last'))
  count('submitted')
  count(as)
  local r = { status = 0, body = error_body(reason), code = code, message = reason, attempts = 0 }
  publish({ n = n, id = id, token = token, fence = '', list = list, source = KEYS[2] }, r)
end
return 1

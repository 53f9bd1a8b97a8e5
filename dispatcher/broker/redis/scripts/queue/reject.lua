-- Records a message that is not a request; publishes a result if its id is known. Arguments: raw, reason, whether the id is
-- known, id, token, code, counter, result list. KEYS[2], if given: the intake that `raw` is a member of and is removed from.
-- Answers 1, or 0 if another replica has removed it.
local raw, reason, known, id, token, code, counter, list = unpack(ARGV, FIRST, FIRST + 7)
if KEYS[2] and call('ZREM', KEYS[2], raw) == 0 then
  return 0
end
add_dead_letter(reason, known == '1' and id or nil, raw)
if known == '1' then
  local n = string.format('%012x', call('INCR', P .. 'last'))
  count('submitted')
  count(counter)
  local r = { status = 0, body = error_body(reason), code = code, message = reason, attempts = 0 }
  publish({ n = n, id = id, token = token, fence = '', list = list, source = KEYS[2] }, r)
end
return 1

-- Who goes next; the same order as dispatcher/broker/memory/order.py, where it is explained.
--   tiers: tiers that hold requests    o:TIER tenants that wait, by virtual time    s:TIER tenants that do not
--   l:TIER:TENANT its requests by deadline, then arrival                            now: TIER → virtual time
local weights

local function charge_of(tenant)
  weights = weights or cjson.decode(WEIGHTS)
  return 1 / (weights[tenant] or 1)
end

local function virtual_now(tier)
  return tonumber(call('HGET', P .. 'now', tier) or 0)
end

local function put(n, tier, tenant, deadline, credit)
  local order = P .. 'o:' .. tier
  local at = call('ZSCORE', order, tenant)
  if not at then
    at = math.max(tonumber(call('ZSCORE', P .. 's:' .. tier, tenant) or 0), virtual_now(tier))
    call('ZREM', P .. 's:' .. tier, tenant)
    call('ZADD', order, at - credit, tenant)
    call('ZADD', P .. 'tiers', tier, tier)
  elseif credit > 0 then
    call('ZINCRBY', order, -credit, tenant)
  end
  call('ZADD', P .. 'l:' .. tier .. ':' .. tenant, deadline, n)
end

local function leave_if_empty(line, tier, tenant)
  if call('EXISTS', line) == 1 then
    return
  end
  local order, gone, now = P .. 'o:' .. tier, P .. 's:' .. tier, virtual_now(tier)
  local at = tonumber(call('ZSCORE', order, tenant) or 0)
  call('ZREM', order, tenant)
  call('ZREMRANGEBYSCORE', gone, '-inf', now)
  if at > now then
    call('ZADD', gone, at, tenant)
  end
  if call('EXISTS', order) == 0 then
    call('ZREM', P .. 'tiers', tier)
  end
end

local function drop(n, tier, tenant)
  local line = P .. 'l:' .. tier .. ':' .. tenant
  call('ZREM', line, n)
  leave_if_empty(line, tier, tenant)
end

-- Those that are served in a row, by line, and the virtual times that they lead to.
local served, reached = {}, {}

-- It is served; what its tenant is charged. Nothing else may touch the order before `write_served`.
local function take(n, tier, tenant)
  local line, charge = P .. 'l:' .. tier .. ':' .. tenant, charge_of(tenant)
  local turn = served[line]
  if not turn then
    turn = { tier = tier, tenant = tenant, at = tonumber(call('ZSCORE', P .. 'o:' .. tier, tenant)), numbers = {} }
    served[line] = turn
  end
  reached[tier] = math.max(turn.at, reached[tier] or virtual_now(tier))
  turn.at = turn.at + charge
  turn.numbers[#turn.numbers + 1] = n
  return charge
end

local function write_served()
  for tier, at in pairs(reached) do
    call('HSET', P .. 'now', tier, string.format('%.17g', at))
  end
  for line, turn in pairs(served) do
    call('ZADD', P .. 'o:' .. turn.tier, turn.at, turn.tenant)
    in_pieces('ZREM', line, turn.numbers)
    leave_if_empty(line, turn.tier, turn.tenant)
  end
  served, reached = {}, {}
end

-- The next of a tenant's requests, read from the broker `step` at a time.
local function next_of(turn, step)
  if turn.index == #turn.ahead then
    turn.ahead = call('ZRANGE', turn.line, turn.read, turn.read + step - 1)
    turn.read, turn.index = turn.read + #turn.ahead, 0
  end
  turn.index = turn.index + 1
  return turn.ahead[turn.index]
end

-- The tenants of a tier that are not skipped, those first whose turn it is; no more than can get a turn.
local function turns_of(tier, limit, skip, skipped)
  local turns = {}
  local found = call('ZRANGE', P .. 'o:' .. tier, 0, limit + skipped - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    if not skip[found[i]] and #turns < limit then
      local line = P .. 'l:' .. tier .. ':' .. found[i]
      turns[#turns + 1] =
        { at = tonumber(found[i + 1]), tenant = found[i], line = line, ahead = {}, index = 0, read = 0 }
    end
  end
  return turns
end

-- Take the turn that comes first out of `turns`, which are in order, and put it back behind.
local function advance(turns)
  local turn = table.remove(turns, 1)
  turn.at = turn.at + charge_of(turn.tenant)
  local i = #turns + 1
  while i > 1 and (turns[i - 1].at > turn.at or (turns[i - 1].at == turn.at and turns[i - 1].tenant > turn.tenant)) do
    i = i - 1
  end
  table.insert(turns, i, turn)
end

-- The next `limit` requests as { number, tier, tenant }, in the order in which they would be taken.
local function next_up(limit, skip, skipped)
  local chosen = {}
  for _, tier in ipairs(call('ZRANGE', P .. 'tiers', 0, -1)) do
    local turns = turns_of(tier, limit - #chosen, skip, skipped)
    local step = #turns > 0 and math.ceil((limit - #chosen) / #turns) or 0
    while #chosen < limit and #turns > 0 do
      local n = next_of(turns[1], step)
      if n then
        chosen[#chosen + 1] = { n, tier, turns[1].tenant }
        advance(turns)
      else
        table.remove(turns, 1)
      end
    end
  end
  return chosen
end

local function skip_from(first)
  local skip = {}
  for i = first, #ARGV do
    skip[ARGV[i]] = true
  end
  return skip, #ARGV - first + 1
end

-- The order of requests, the same as in dispatcher/broker/memory/order.py, which explains it.
--   tiers: tiers with waiting requests          o:TIER: tenants with waiting requests, by virtual time
--   s:TIER: tenants without, by virtual time    l:TIER:TENANT: a tenant's requests by deadline, then number
--   now: the virtual time of each tier (hash)
local weights

local function cost_of(tenant)
  weights = weights or cjson.decode(WEIGHTS)
  return 1 / (weights[tenant] or 1)
end

local function virtual_now(tier)
  return tonumber(call('HGET', P .. 'now', tier) or 0)
end

-- A tenant that comes, or comes back, starts no earlier than the tier's virtual time: idle tenants save up no turns.
local function add_to_order(n, tier, tenant, deadline, credit)
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

-- An empty tenant keeps its virtual time while it is ahead; else a tenant with one request at a time would start afresh
-- with each. Those that are not ahead are dropped: they would start at the tier's virtual time anyway.
local function remove_tenant_if_empty(line, tier, tenant)
  if call('EXISTS', line) == 1 then
    return
  end
  local order, idle, now = P .. 'o:' .. tier, P .. 's:' .. tier, virtual_now(tier)
  local at = tonumber(call('ZSCORE', order, tenant) or 0)
  call('ZREM', order, tenant)
  call('ZREMRANGEBYSCORE', idle, '-inf', now)
  if at > now then
    call('ZADD', idle, at, tenant)
  end
  if call('EXISTS', order) == 0 then
    call('ZREM', P .. 'tiers', tier)
  end
end

local function remove_from_order(n, tier, tenant)
  local line = P .. 'l:' .. tier .. ':' .. tenant
  call('ZREM', line, n)
  remove_tenant_if_empty(line, tier, tenant)
end

-- Requests served in this script, by line, and the virtual time that each tier reaches by them.
local served, reached = {}, {}

-- Serves a request and returns its cost. Nothing else may change the order before `write_served`, since it is written once
-- for all requests of the script.
local function serve(n, tier, tenant)
  local line, cost = P .. 'l:' .. tier .. ':' .. tenant, cost_of(tenant)
  local turn = served[line]
  if not turn then
    turn = { tier = tier, tenant = tenant, at = tonumber(call('ZSCORE', P .. 'o:' .. tier, tenant)), numbers = {} }
    served[line] = turn
  end
  reached[tier] = math.max(turn.at, reached[tier] or virtual_now(tier))
  turn.at = turn.at + cost
  turn.numbers[#turn.numbers + 1] = n
  return cost
end

-- %.17g: all digits of a double. Lua's own conversion to text keeps 14, and rounding would add up.
local function write_served()
  for tier, at in pairs(reached) do
    call('HSET', P .. 'now', tier, string.format('%.17g', at))
  end
  for line, turn in pairs(served) do
    call('ZADD', P .. 'o:' .. turn.tier, turn.at, turn.tenant)
    in_pieces('ZREM', line, turn.numbers)
    remove_tenant_if_empty(line, turn.tier, turn.tenant)
  end
  served, reached = {}, {}
end

-- The next of a tenant's requests; they are read `step` at a time.
local function next_of(turn, step)
  if turn.index == #turn.ahead then
    turn.ahead = call('ZRANGE', turn.line, turn.read, turn.read + step - 1)
    turn.read, turn.index = turn.read + #turn.ahead, 0
  end
  turn.index = turn.index + 1
  return turn.ahead[turn.index]
end

-- The tenants of a tier that are not skipped, by virtual time. At most `limit`: others cannot get a turn.
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

-- Charges the first tenant of `turns`, which are sorted, and moves it to its new place.
local function advance(turns)
  local turn = table.remove(turns, 1)
  turn.at = turn.at + cost_of(turn.tenant)
  local i = #turns + 1
  while i > 1 and (turns[i - 1].at > turn.at or (turns[i - 1].at == turn.at and turns[i - 1].tenant > turn.tenant)) do
    i = i - 1
  end
  table.insert(turns, i, turn)
end

-- The next `limit` requests as { number, tier, tenant }, in the order in which they would be served. Writes nothing.
local function next_requests(limit, skip, skipped)
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

-- The tenants to skip, which are the arguments from `first` on, as a set, and how many they are.
local function skip_from(first)
  local skip = {}
  for i = first, #ARGV do
    skip[ARGV[i]] = true
  end
  return skip, #ARGV - first + 1
end

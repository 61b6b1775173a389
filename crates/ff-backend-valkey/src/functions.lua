-- What the server itself does for a store: it checks versions, applies writes and lists records, each in one step. It knows no rule
-- of the engine. `LIBRARY` stands for the name, which tells one version of this file from another.

-- Values that one command is given at most; Lua cannot pass many more.
local MOST = 3000

-- The time of this server in microseconds, and in milliseconds.
local function time()
  local told = redis.call('TIME')
  return told[1] * 1000000 + told[2]
end
local function now()
  return math.floor(time() / 1000)
end

-- Calls `run` with parts of a list of so many values, none of them too long.
local function in_parts(count, run)
  for first = 1, count, MOST do
    run(first, math.min(first + MOST - 1, count))
  end
end

-- The values of keys from one place of a list to another; false for those that are not there.
local function values(keys, behind, count)
  local out = {}
  in_parts(count, function(first, last)
    local found = redis.call('MGET', unpack(keys, behind + first, behind + last))
    for i = 1, #found do out[first + i - 1] = found[i] end
  end)
  return out
end

-- A part of an ordered list: its first members between two bounds, or its last ones, the last first.
local function members(key, low, high, limit, reverse)
  if reverse == '1' then
    return redis.call('ZRANGE', key, high, low, 'BYLEX', 'REV', 'LIMIT', 0, limit)
  end
  return redis.call('ZRANGE', key, low, high, 'BYLEX', 'LIMIT', 0, limit)
end

-- The name of the record that a member stands for. Where the last byte is 1 it is an execution, and the 18 bytes before are its partition and
-- its UUID. Otherwise the name is written out, with its length behind it.
local function name_of(member)
  if string.byte(member, -1) == 1 then
    return '\1' .. string.sub(member, -17, -2) .. string.sub(member, -19, -18) .. '\1'
  end
  local length = string.byte(member, -3) * 256 + string.byte(member, -2)
  return string.sub(member, -3 - length, -4)
end

-- The records that members of a list stand for. Of executions, those of `beside` come along, whose names end with these bytes.
local function records_of(list, found, prefix, beside)
  local keys = {}
  for i = 1, #found do
    local name = name_of(found[i])
    keys[#keys + 1] = prefix .. name
    for j = 1, #beside do
      keys[#keys + 1] = prefix .. string.sub(name, 1, -2) .. string.sub(beside, j, j)
    end
  end
  -- While a slot moves, one key that is still elsewhere would count as absent; of two the server says so.
  if #keys == 1 then return { values({ list, keys[1] }, 0, 2)[2] } end
  return values(keys, 0, #keys)
end

-- Reads records by key and parts of lists with their records, all at one moment.
-- KEYS: records, then lists. ARGV: how many records, how many lists, what record keys begin with; then for each list the lower and the upper
-- bound, the limit, whether it is wanted backwards, and what to bring: `-` for nothing, or what stands beside executions.
local function look(keys, args)
  local records, lists, prefix = tonumber(args[1]), tonumber(args[2]), args[3]
  local pages = {}
  for i = 1, lists do
    local at = 4 + (i - 1) * 5
    local found = members(keys[records + i], args[at], args[at + 1], args[at + 2], args[at + 3])
    local brought = {}
    if args[at + 4] ~= '-' then brought = records_of(keys[records + i], found, prefix, args[at + 4]) end
    pages[i] = { redis.sha1hex(table.concat(found)), found, brought }
  end
  return { now(), values(keys, 0, records), pages }
end

-- Whether a value is as it was read: absent, or beginning with a version; behind an `f` the version of its ownership is meant.
local function is_as_read(value, expected)
  if expected == '' then return value == false end
  if value == false then return false end
  if #expected == 9 then return string.sub(value, 9, 16) == string.sub(expected, 2) end
  return string.sub(value, 1, 8) == expected
end

-- Adds members to lists or takes them out. Each bundle tells how many lists get how many members. `behind` and `at` are behind the last key
-- and value that were used; says where they end.
local function change_lists(command, keys, behind, bundles, args, at)
  for _ = 1, bundles do
    local lists, count, given = tonumber(args[at + 1]), tonumber(args[at + 2]), {}
    at = at + 2
    for i = 1, count do
      if command == 'ZADD' then given[#given + 1] = '0' end
      given[#given + 1] = args[at + i]
    end
    for i = 1, lists do
      in_parts(#given, function(first, last) redis.call(command, keys[behind + i], unpack(given, first, last)) end)
    end
    behind, at = behind + lists, at + count
  end
  return behind, at
end

-- The number of the last of so many new events. Numbers follow the time, so that they go on growing on a replica that took over without the
-- latest events, and nobody who has seen those overlooks what comes after.
local function event_number(key, count)
  local last = tonumber(redis.call('GET', key) or 0)
  local number = string.format('%.0f', math.max(last + count, time()))
  redis.call('SET', key, number)
  return number
end

-- Applies a group of writes if everything is as it was read, or nothing.
-- KEYS: where the last commit of this sender is noted, the number of the last event, the log; then records that were read, records to write,
-- records to delete, lists that were read, lists to enter, lists to leave.
-- ARGV: the number of this commit, which only grows, for how many seconds to remember it, how many keys there are of each sort (of the last two, how many
-- bundles), the number of entries of the log, a channel and a message for it; then expected versions, values, parts of lists with their digests, members to enter, members to leave, and
-- for each entry of the log when its events happened, how many there are, and the events.
-- Answers the time, and the place of the first record or list that is not as it was read, or 0; -1 for one that comes too late.
local function commit(keys, args)
  local number, latest = tonumber(args[1]), tonumber(redis.call('GET', keys[1]) or 0)
  -- The sender has sent another one since, so nobody waits for this one any more.
  if latest > number then return { now(), -1 } end
  if latest == number then
    -- A write of its own, so that whoever waits for replicas waits for this one.
    redis.call('SET', keys[1], args[1], 'EX', args[2])
    return { now(), 0 }
  end
  local read, put, gone = tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local ranges, entered, left = tonumber(args[6]), tonumber(args[7]), tonumber(args[8])
  local entries, at, behind = tonumber(args[9]), 11, 3

  local found = values(keys, behind, read)
  for i = 1, read do
    if not is_as_read(found[i], args[at + i]) then return { now(), i } end
  end
  at = at + read
  local puts = at
  at = at + put
  local lists = behind + read + put + gone
  for i = 1, ranges do
    local seen = members(keys[lists + i], args[at + 1], args[at + 2], args[at + 3], args[at + 4])
    if redis.sha1hex(table.concat(seen)) ~= args[at + 5] then return { now(), read + i } end
    at = at + 5
  end

  behind = behind + read
  local written = {}
  for i = 1, put do
    written[2 * i - 1] = keys[behind + i]
    written[2 * i] = args[puts + i]
  end
  in_parts(#written, function(first, last) redis.call('MSET', unpack(written, first, last)) end)
  behind = behind + put
  in_parts(gone, function(first, last) redis.call('UNLINK', unpack(keys, behind + first, behind + last)) end)
  lists = lists + ranges
  lists, at = change_lists('ZADD', keys, lists, entered, args, at)
  lists, at = change_lists('ZREM', keys, lists, left, args, at)

  for _ = 1, entries do
    local entry, count = { 'a', args[at + 1] }, tonumber(args[at + 2])
    at = at + 2
    for i = 1, count do
      entry[2 * i + 1] = 'e'
      entry[2 * i + 2] = args[at + i]
    end
    at = at + count
    redis.call('XADD', keys[3], event_number(keys[2], count) .. '-0', unpack(entry))
  end
  if args[11] ~= '' then redis.call('PUBLISH', args[10], args[11]) end
  redis.call('SET', keys[1], args[1], 'EX', args[2])
  return { now(), 0 }
end

-- Reads events behind a number. KEYS: the number of the last event, the log, the number of the last one that was dropped.
-- ARGV: behind which number, and how many entries of the log at most, each of which holds the events of a commit.
-- Answers the number of the last event, the highest that anybody can have seen by now, the last one that was dropped, and the entries.
local function events(keys, args)
  local last, dropped, entries = tonumber(redis.call('GET', keys[1]) or 0), redis.call('GET', keys[3]) or '0', {}
  if tonumber(args[2]) > 0 then
    entries = redis.call('XRANGE', keys[2], args[1], '+', 'COUNT', args[2])
  end
  return { last, math.max(last, time()), dropped, entries }
end

-- Drops the oldest entries of the log whose events happened before a time. KEYS as for `events`. ARGV: the time, and after how many events to
-- stop. Says how many were dropped.
local function trim(keys, args)
  local before, limit, count = tonumber(args[1]), tonumber(args[2]), 0
  while count < limit do
    local oldest = redis.call('XRANGE', keys[2], '-', '+', 'COUNT', 1)[1]
    if not oldest or tonumber(oldest[2][2]) >= before then break end
    count = count + (#oldest[2] - 2) / 2
    redis.call('XDEL', keys[2], oldest[1])
    redis.call('SET', keys[3], string.sub(oldest[1], 1, -3))
  end
  return count
end

-- Adds members to a list or takes them out, each if the record that it stands for is as it was read. KEYS: the list, then the records.
-- ARGV: `ZADD` or `ZREM`, then for each record its version and the member. Says how many were added or taken out.
local function repair(keys, args)
  local found, changed = values(keys, 1, #keys - 1), 0
  for i = 1, #keys - 1 do
    local member = args[2 * i + 1]
    if is_as_read(found[i], args[2 * i]) then
      changed = changed + (args[1] == 'ZADD' and redis.call('ZADD', keys[1], 0, member) or redis.call('ZREM', keys[1], member))
    end
  end
  return changed
end

-- Says that a shard may hold something of queues from now on. KEYS: the signs of these queues. ARGV: the number of the shard.
local function put_up(keys, args)
  for i = 1, #keys do redis.call('ZADD', keys[i], now(), args[1]) end
end

-- Reads the signs of queues. KEYS: the signs. Answers the time, and for each queue its shards, each with the time of its sign.
local function signs(keys, args)
  local out = {}
  for i = 1, #keys do out[i] = redis.call('ZRANGE', keys[i], 0, -1, 'WITHSCORES') end
  return { now(), out }
end

-- Takes signs of a queue down that are as they were read. KEYS: the signs. ARGV: shards, each with the time of its sign.
local function take_down(keys, args)
  for i = 1, #args, 2 do
    if redis.call('ZSCORE', keys[1], args[i]) == args[i + 1] then redis.call('ZREM', keys[1], args[i]) end
  end
end

redis.register_function { function_name = 'LIBRARY_look', callback = look, flags = { 'no-writes' } }
redis.register_function { function_name = 'LIBRARY_events', callback = events, flags = { 'no-writes' } }
redis.register_function { function_name = 'LIBRARY_signs', callback = signs, flags = { 'no-writes' } }
redis.register_function('LIBRARY_commit', commit)
redis.register_function('LIBRARY_trim', trim)
redis.register_function('LIBRARY_repair', repair)
redis.register_function('LIBRARY_put_up', put_up)
redis.register_function('LIBRARY_take_down', take_down)

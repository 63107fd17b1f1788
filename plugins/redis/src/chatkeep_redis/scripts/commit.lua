-- One write on one session, all of it or none of it.
--
-- KEYS  1 head    hash: h, k, l, M<name>, L<log>; see below
--       2 order   sorted set, every score 0, so that its members are in the order of their bytes; each is of one kind:
--                 r<log><seq><record>    a message
--                 u<log><seq>            a message that starts a turn
--                 x<log><seq><id>        an id that was trimmed and is remembered
--                 b<log><number><token>  a batch that is remembered
--                 k<key>                 a state key
--       3 known   hash: i<log><id> -> seq, b<log><token> -> first, last and all seqs of a batch
--       4 values  hash: v<key> -> version, d<key> -> format and value of a state key
--       5 recent  hash: the answers to the last writes by their tokens, and #<place> -> time (eight bytes) and token
--
-- In these names <log> is the length of the log's name in two bytes and the name, <seq> and <number> are eight bytes,
-- and a <record> is: created (a double), starts_turn (a byte), the lengths of id, role and format (two bytes each) and
-- of the text (four bytes, all ones where there is none), then id, text, role, format and payload.
--
-- Of the head, h is the version of this layout, life, created, updated, expires, ttl, fence and the number of writes;
-- k is the session's full name, l the lease (until, owner), M<name> an entry of the metadata, and L<log> where a log
-- stands: tail, last, size, rewrite, trimmed ids, batches. Times are microseconds by this server's clock.
--
-- The first write of each command sequence is one that Redis refuses when it is out of memory, unless what is asked for
-- frees memory: once a script has written, Redis lets it write on.
--
-- Answers with a list, but for a write that is done: that is a text of life, tail, last, size, rewrite, added, removed,
-- fence, a number with 1 if the life began, and then seqs: with 2 in that number the first of as many as there are
-- records, else all of them, as "1,2,5" or "1-3". The same text is what is remembered.

local call, pack, unpacked, sub = redis.call, struct.pack, struct.unpack, string.sub
local HEAD, LOG, DONE, LAYOUT = '>c1c8I8I8I8I8I4I4', '>I8I8I8I8I4I4', '>c8I8I8I8I8I4I4I4I1', '1'
local RECENT, MANY, BATCHES, PART, FEW = 256, 32, 128, 500, 8
local END = string.rep('\255', 8)

local key, order, known, values, recent = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, name, new_life, may_begin, kind, log = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local wanted_life, flags, wanted_ttl = ARGV[7], ARGV[8], tonumber(ARGV[9])
local wanted_tail, wanted_rewrite, wanted_fence = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local memory, repeated, argument = ARGV[13], tonumber(ARGV[14]), 15

local function given()
  argument = argument + 1
  return ARGV[argument - 1]
end

local function has(flag)
  return string.find(flags, flag, 1, true) ~= nil
end

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- What is there

local found = call('HMGET', key, 'h', 'k', 'L' .. log)
local exists = found[1] and true or false
local layout, life, created, updated, expires, ttl, fence, writes = LAYOUT, '', now, now, 0, 0, 0, 0
if exists then
  if sub(found[1], 1, 1) ~= LAYOUT then
    return { 'layout', sub(found[1], 1, 1) }
  end
  if found[2] ~= name then
    return { 'taken' }
  end
  if #found[1] == 49 then
    layout, life, created, updated, expires, ttl, fence, writes = unpacked(HEAD, found[1])
  elseif kind == 'delete' then
    life = string.rep('\0', 8)
  else
    return { 'damaged' }
  end
end

-- A caller who sends a batch again is answered otherwise than the store that repeats a write, whose life is the same.
local mine = has('b') and token .. new_life or token
if not exists and call('EXISTS', recent) == 1 then -- of a life before: the places go on from where that one ended
  local latest, fields = 0, call('HGETALL', recent)
  for number = 1, #fields, 2 do
    local its = string.match(fields[number], '^#(%d+)$')
    if its and unpacked('>I8', fields[number + 1]) >= latest then
      latest, writes = unpacked('>I8', fields[number + 1]), its + 1
    end
  end
end
local place = '#' .. writes % RECENT
local remembered = call('HMGET', recent, mine, place)
if remembered[1] then
  call('PEXPIRE', recent, memory)
  return remembered[1]
end

local log_exists = found[3] and true or false
local tail, last, size, rewrite, trimmed, batches = 0, 0, 0, 0, 0, 0
if log_exists then
  if #found[3] == 40 then
    tail, last, size, rewrite, trimmed, batches = unpacked(LOG, found[3])
  elseif kind ~= 'delete' then
    return { 'damaged' }
  end
end

local function refused(...)
  return { 'refused', life, log_exists and 1 or 0, tail, last, size, rewrite, fence, ... }
end

local base = pack('>I2', #log) .. log
local records, turns, olds, numbers = 'r' .. base, 'u' .. base, 'x' .. base, 'b' .. base
local ids, tokens = 'i' .. base, 'b' .. base

local batch
if exists and kind == 'append' and has('b') then
  batch = call('HGET', known, tokens .. token)
end

-- The store repeats a write that it sent first so many microseconds ago. If we have forgotten none that is so new, it was
-- not stored; else nobody knows.
if repeated and not batch and (exists or not has('m')) then
  if remembered[2] and unpacked('>I8', remembered[2]) >= now - repeated then
    return { 'unknown' }
  end
end

-- Conditions

local wrong_life = wanted_life ~= '' and wanted_life ~= '=' .. life
local wrong_tail = (wanted_tail and wanted_tail ~= tail) or (wanted_rewrite and wanted_rewrite ~= rewrite)
if wrong_life or (exists and wanted_fence and wanted_fence < fence) or (wrong_tail and not batch) then
  return refused('head')
end
local on_records = kind == 'append' or kind == 'truncate' or kind == 'replace' or kind == 'rewrite'
if size > 0 and on_records and call('EXISTS', order) == 0 then
  return { 'evicted' }
end
if not exists then
  if has('m') then
    return { 'none' }
  end
  if may_begin == '' then
    return { 'absent' }
  end
end

-- Answering

local began = 0
local function begin()
  if exists then
    return
  end
  began, life = 1, new_life
  if call('EXISTS', order, known, values) > 0 then -- evicted, or expired a moment later than the head
    call('UNLINK', order, known, values)
  end
end

-- `first` is the first of the seqs, where the records have as many in a row; else `seqs` is all of them, or nothing.
local function answer(added, removed, first, seqs, more_fields)
  local renewed = expires
  if not has('s') then
    renewed, ttl = 0, 0
  elseif not wanted_ttl then
    if ttl > 0 then
      renewed = now + ttl
    end
  elseif has('f') then
    renewed, ttl = created + wanted_ttl, 0
  else
    renewed, ttl = now + wanted_ttl, wanted_ttl
  end
  local instant = math.ceil(renewed / 1000)
  if has('t') and renewed > 0 then -- first, for it needs no memory
    call('PEXPIREAT', key, instant)
  end
  if not has('t') then
    updated = now
  end
  local head = pack(HEAD, LAYOUT, life, created, updated, renewed, ttl, fence, (writes + 1) % 4294967296)
  local fields = more_fields or {}
  fields[#fields + 1], fields[#fields + 2] = 'h', head
  if began == 1 then
    fields[#fields + 1], fields[#fields + 2] = 'k', name
  end
  if log_exists then
    fields[#fields + 1] = 'L' .. log
    fields[#fields + 1] = pack(LOG, tail, last, size, rewrite, trimmed, batches)
  end
  call('HSET', key, unpack(fields))
  for _ = 1, tonumber(given()) do
    local entry, change = 'M' .. given(), given()
    if change == '-' then
      call('HDEL', key, entry)
    else
      call('HSET', key, entry, sub(change, 2))
    end
  end
  if renewed > 0 then
    call('PEXPIREAT', key, instant)
    call('PEXPIREAT', order, instant)
    call('PEXPIREAT', known, instant)
    call('PEXPIREAT', values, instant)
  end
  local reply = pack(DONE, life, tail, last, size, rewrite, added, removed, fence, first and began + 2 or began)
  if first then
    reply = reply .. pack('>I8', first)
  elseif seqs then
    reply = reply .. seqs
  end
  if remembered[2] then
    call('HDEL', recent, sub(remembered[2], 9))
  end
  if writes % RECENT == MANY then -- a value too long for a small hash: a large one that is searched would be slow
    call('HSET', recent, '', string.rep(' ', 65))
  end
  call('HSET', recent, mine, reply, place, pack('>I8', now) .. mine)
  call('PEXPIRE', recent, memory)
  return reply
end

-- A log's records: what an append needs as a rule

local function at(prefix, seq)
  return prefix .. pack('>I8', seq)
end

local function all(prefix)
  return '(' .. prefix .. END
end

-- What is damaged may be too short for what is looked for in it: then it has none.
local function length_at(member, place)
  return #member > place and unpacked('>I2', member, place) or 0
end

local function id_of(record)
  if #record < 19 then
    return ''
  end
  return sub(record, 20, 19 + unpacked('>I2', record, 10))
end

local function starts_turn(record)
  return sub(record, 9, 9) == '\1'
end

local function dated(record, otherwise)
  if sub(record, 1, 8) == '\0\0\0\0\0\0\0\0' then
    return otherwise .. sub(record, 9)
  end
  return record
end

-- Puts records at consecutive places of a list of seqs, some at a time: one command takes less than two.
local function put_all(seqs, given_records)
  local members, names = {}, {}
  for number, seq in ipairs(seqs) do
    local record = given_records[number]
    local stamp = pack('>I8', seq)
    members[#members + 1], members[#members + 2] = 0, records .. stamp .. record
    if starts_turn(record) then
      members[#members + 1], members[#members + 2] = 0, turns .. stamp
    end
    local id = id_of(record)
    if id ~= '' then
      names[#names + 1], names[#names + 2] = ids .. id, seq
    end
    if #members >= PART or number == #seqs then
      call('ZADD', order, unpack(members))
      if #names > 0 then
        call('HSET', known, unpack(names))
      end
      members, names = {}, {}
    end
  end
end

-- Where only a few records are to spare, the usual case: looks at them, and takes out those before the last turn start
-- among them; how many those are. Two commands, where the general way takes six.
local function trim_few(spare)
  local some = call('ZRANGEBYLEX', order, '[' .. records, all(records), 'LIMIT', 0, spare)
  local cut = #some
  while cut > 0 and sub(some[cut], #records + 17, #records + 17) ~= '\1' do
    cut = cut - 1
  end
  local gone, kept = {}, {}
  for number = 1, cut - 1 do
    local member = some[number]
    local place = sub(member, #records + 1, #records + 8)
    gone[#gone + 1], gone[#gone + 2] = member, turns .. place -- which is there, or not
    local length = length_at(member, #records + 18)
    if length > 0 then
      kept[#kept + 1], kept[#kept + 2] = 0, olds .. place .. sub(member, #records + 28, #records + 27 + length)
    end
  end
  if #kept > 0 then
    call('ZADD', order, unpack(kept))
    trimmed = trimmed + #kept / 2
  end
  if #gone > 0 then
    call('ZREM', order, unpack(gone))
  end
  return #gone / 2
end

-- What is needed less often is not made before: making a function takes time, and this is run for each write.
local function more()
  local function seq_of(prefix, member)
    return #member >= #prefix + 8 and (unpacked('>I8', member, #prefix + 1)) or 0
  end

  local function upto(prefix, seq)
    return '(' .. at(prefix, seq + 1)
  end

  local function held(seq)
    return call('ZRANGEBYLEX', order, '[' .. at(records, seq), upto(records, seq), 'LIMIT', 0, 1)[1]
  end

  -- Calls `look` with the seq, the id and the member of each record from one seq up to a bound, some at a time.
  local function each(first, bound, look)
    local from = '[' .. at(records, first)
    while true do
      local some = call('ZRANGEBYLEX', order, from, bound, 'LIMIT', 0, PART)
      for _, member in ipairs(some) do
        local seq = seq_of(records, member)
        local length = length_at(member, #records + 18)
        look(seq, sub(member, #records + 28, #records + 27 + length), member)
      end
      if #some < PART then
        return
      end
      from = '[' .. at(records, seq_of(records, some[#some]) + 1)
    end
  end

  -- Where in a record its role, its format and its payload begin; a damaged one is a payload alone.
  local function parts(record)
    if #record < 19 then
      return 1, 1, 1
    end
    local id, role, format, text = unpacked('>I2I2I2I4', record, 10)
    if text == 4294967295 then
      text = 0
    end
    local begins = 20 + id + text
    if begins + role + format - 1 > #record then
      return 1, 1, 1
    end
    return begins, begins + role, begins + role + format
  end

  local function same_content(one, other)
    if sub(one, 9, 9) ~= sub(other, 9, 9) or sub(one, 12, 15) ~= sub(other, 12, 15) then
      return false
    end
    return sub(one, (parts(one))) == sub(other, (parts(other)))
  end

  local function put(seq, record)
    put_all({ seq }, { record })
  end

  -- In the place of the member that is there. It is added first: see above.
  local function swap(seq, record, member)
    put(seq, record)
    if member ~= at(records, seq) .. record then
      call('ZREM', order, member)
    end
    if not starts_turn(record) then
      call('ZREM', order, at(turns, seq))
    end
  end

  local function newest()
    local member = call('ZREVRANGEBYLEX', order, all(records), '[' .. records, 'LIMIT', 0, 1)[1]
    return member and seq_of(records, member) or 0
  end

  -- Takes out the records from one seq up to a bound, with their ids, and the batches that lay wholly there.
  local function take(first, bound, most)
    local lowest
    each(first, bound, function(seq, id)
      lowest = lowest or seq
      if id ~= '' then
        call('HDEL', known, ids .. id)
      end
    end)
    if not lowest then
      return 0
    end
    local gone = call('ZREMRANGEBYLEX', order, '[' .. at(records, first), bound)
    call('ZREMRANGEBYLEX', order, '[' .. at(turns, first), most and upto(turns, most) or all(turns))
    for _, member in ipairs(call('ZRANGEBYLEX', order, '[' .. numbers, all(numbers))) do
      local its = tokens .. sub(member, #numbers + 9)
      local low, high = string.match(call('HGET', known, its) or '', '^(%d+) (%d+) ')
      if low and tonumber(low) >= lowest and (not most or tonumber(high) <= most) then
        call('HDEL', known, its)
        call('ZREM', order, member)
      end
    end
    size = size - gone
    tail = newest()
    return gone
  end

  -- The first seq behind the leading turns whose last record is older than so many seconds.
  local function old_turns(age)
    local oldest, cut = now / 1000000 - age, 0
    local member = call('ZRANGEBYLEX', order, '[' .. records, all(records), 'LIMIT', 0, 1)[1]
    local first = member and seq_of(records, member)
    while first do
      local turn = call('ZRANGEBYLEX', order, '[' .. at(turns, first + 1), all(turns), 'LIMIT', 0, 1)[1]
      if not turn then
        break
      end
      first = seq_of(turns, turn)
      local before = call('ZREVRANGEBYLEX', order, '(' .. at(records, first), '[' .. records, 'LIMIT', 0, 1)[1]
      if not before or #before < #records + 16 or unpacked('>d', before, #records + 9) >= oldest then
        break
      end
      cut = first
    end
    return cut
  end

  -- The last turn start at or before the so-many-th newest record.
  local function spare_turns(most)
    local behind = call('ZLEXCOUNT', order, '-', all(records))
    local member = call('ZRANGE', order, behind - most, behind - most)[1]
    if not member then
      return 0
    end
    local turn = call('ZREVRANGEBYLEX', order, upto(turns, seq_of(records, member)), '[' .. turns, 'LIMIT', 0, 1)[1]
    return turn and seq_of(turns, turn) or 0
  end

  local function trim_many(most, age)
    local cut = age and old_turns(age) or 0
    if most == 0 then
      cut = last + 1
    elseif most and size > most then
      cut = math.max(cut, spare_turns(most))
    end
    if cut == 0 then
      return 0
    end
    local bound = '(' .. at(records, cut)
    each(0, bound, function(seq, id)
      if id ~= '' then
        call('ZADD', order, 0, at(olds, seq) .. id)
        trimmed = trimmed + 1
      end
    end)
    local gone = call('ZREMRANGEBYLEX', order, '[' .. records, bound)
    if gone > 0 then
      call('ZREMRANGEBYLEX', order, '[' .. turns, '(' .. at(turns, cut))
    end
    return gone
  end

  return {
    upto = upto, held = held, each = each, parts = parts, same_content = same_content,
    put = put, swap = swap, take = take, trim_many = trim_many,
  }
end

local function trim(most, age, remember)
  local gone
  if most and most > 0 and not age and size - most < FEW then
    gone = size > most and trim_few(size - most + 1) or 0
  else
    gone = more().trim_many(most, age)
  end
  if gone == 0 then
    return
  end
  size = size - gone
  if size == 0 then
    tail = 0
  end
  while trimmed > remember do
    local some = call('ZRANGEBYLEX', order, '[' .. olds, all(olds), 'LIMIT', 0, math.min(PART, trimmed - remember))
    for _, member in ipairs(some) do
      call('HDEL', known, ids .. sub(member, #olds + 9))
    end
    call('ZREM', order, unpack(some))
    trimmed = trimmed - #some
  end
end

-- The one kind of change that is asked for

if kind == 'append' then
  local on_conflict, most, age, remember = given(), tonumber(given()), tonumber(given()), tonumber(given())
  local count = tonumber(given())
  local first = argument
  argument = argument + count
  if batch then
    return answer(0, 0, nil, string.match(batch, ' ([^ ]*)$'))
  end
  local stamp = pack('>d', now / 1000000)
  local named = {}
  if on_conflict == 'strict' then
    local met = {}
    for number = 1, count do
      local id = id_of(ARGV[first + number - 1])
      local seq = id ~= '' and call('HGET', known, ids .. id)
      if seq then
        met[#met + 1], met[#met + 2] = number, tonumber(seq)
      end
    end
    if #met > 0 then
      local reply = refused('strict')
      for number, what in ipairs(met) do
        reply[9 + number] = what
      end
      return reply
    end
  end
  local fresh, swapped, members, seqs, added = {}, {}, {}, {}, 0
  for number = 1, count do
    local record = ARGV[first + number - 1]
    local id = id_of(record)
    local seq = id ~= '' and (named[id] or tonumber(call('HGET', known, ids .. id) or nil))
    if not seq then
      added = added + 1
      seq = last + added
      fresh[seq] = dated(record, stamp)
      if id ~= '' then
        named[id] = seq
      end
    elseif on_conflict ~= 'keep' then
      local current = fresh[seq] or swapped[seq]
      if not current then
        members[seq] = more().held(seq)
        current = members[seq] and sub(members[seq], #records + 9)
      end
      if current and not more().same_content(current, record) then
        if on_conflict == 'error' then
          return refused('duplicate', number, seq)
        end
        local better = sub(current, 1, 8) .. sub(record, 9)
        if fresh[seq] then
          fresh[seq] = better
        else
          swapped[seq] = better
        end
      end
    end
    seqs[number] = seq
  end
  begin()
  if added > 0 then
    local places, new = {}, {}
    for number = 1, added do
      places[number], new[number] = last + number, fresh[last + number]
    end
    put_all(places, new)
  end
  for seq, record in pairs(swapped) do
    more().swap(seq, record, members[seq])
  end
  if next(swapped) then
    rewrite = rewrite + 1
  end
  log_exists = true
  last, size = last + added, size + added
  if added > 0 then
    tail = last
  end
  local text, low, high = nil, seqs[1], seqs[count]
  if added == count then
    text = has('b') and string.format('%.0f-%.0f', low, high)
  else
    for number, seq in ipairs(seqs) do
      low, high = math.min(low, seq), math.max(high, seq)
      seqs[number] = string.format('%.0f', seq)
    end
    text = table.concat(seqs, ',')
  end
  if has('b') then
    batches = batches + 1
    call('HSET', known, tokens .. token, string.format('%.0f %.0f ', low, high) .. text)
    call('ZADD', order, 0, at(numbers, batches) .. token)
    local more = call('ZLEXCOUNT', order, '[' .. numbers, all(numbers)) - BATCHES
    if more > 0 then
      for _, member in ipairs(call('ZRANGEBYLEX', order, '[' .. numbers, all(numbers), 'LIMIT', 0, more)) do
        call('HDEL', known, tokens .. sub(member, #numbers + 9))
        call('ZREM', order, member)
      end
    end
  end
  if most or age then
    trim(most, age, remember)
  end
  return answer(added, 0, added == count and low, text)
end

if kind == 'truncate' then
  local its = more()
  local after = tonumber(given())
  begin()
  local removed = log_exists and its.take(after + 1, all(records)) or 0
  return answer(0, removed)
end

if kind == 'replace' then
  local its = more()
  local most = tonumber(given())
  local count = tonumber(given())
  local first = argument
  argument = argument + count
  local upper = most or last
  local bound = its.upto(records, upper)
  local places, taken, mine = 0, {}, {}
  its.each(0, bound, function(seq, id)
    places = places + 1
    taken[places] = seq
    if id ~= '' then
      mine[id] = true
    end
  end)
  if (most and most > last) or count > places then
    return refused('replace', places)
  end
  for number = 1, count do
    local id = id_of(ARGV[first + number - 1])
    local seq = id ~= '' and not mine[id] and call('HGET', known, ids .. id)
    if seq then
      return refused('duplicate', number, tonumber(seq))
    end
  end
  begin()
  its.take(0, bound, upper)
  local stamp, seqs = pack('>d', now / 1000000), {}
  for number = 1, count do
    local seq = taken[places - count + number]
    its.put(seq, dated(ARGV[first + number - 1], stamp))
    seqs[number] = string.format('%.0f', seq)
    tail = math.max(tail, seq)
  end
  size = size + count
  if places > 0 then
    rewrite = rewrite + 1
  end
  return answer(0, 0, nil, table.concat(seqs, ','))
end

if kind == 'rewrite' then
  local its = more()
  local seq, condition, record = tonumber(given()), given(), given()
  local member = its.held(seq)
  if not member then
    return refused('rewrite', 0)
  end
  local current = sub(member, #records + 9)
  if condition ~= '' then
    local _, _, payload = its.parts(current)
    if sub(current, payload) ~= sub(condition, 2) then
      return refused('rewrite', 1)
    end
  end
  local id, old = id_of(record), id_of(current)
  if id ~= '' then
    local other = tonumber(call('HGET', known, ids .. id) or nil)
    if other and other ~= seq then
      return refused('duplicate', 1, other)
    end
  end
  begin()
  its.swap(seq, dated(record, sub(current .. string.rep('\0', 8), 1, 8)), member)
  if old ~= '' and old ~= id then
    call('HDEL', known, ids .. old)
  end
  rewrite = rewrite + 1
  return answer(0, 0)
end

if kind == 'state' then
  local count = tonumber(given())
  local first = argument
  argument = argument + 4 * count
  local sets = false
  for number = 0, count - 1 do
    local entry, condition = ARGV[first + 4 * number], ARGV[first + 4 * number + 1]
    if condition ~= '' then
      local version = call('HGET', values, 'v' .. entry)
      if sub(condition, 2) ~= (version or '') then
        return refused('state', number + 1, version or '')
      end
    end
    sets = sets or ARGV[first + 4 * number + 3] ~= ''
  end
  begin()
  for number = 0, count - 1 do
    local entry, version, value = ARGV[first + 4 * number], ARGV[first + 4 * number + 2], ARGV[first + 4 * number + 3]
    if value == '' then
      call('HDEL', values, 'v' .. entry, 'd' .. entry)
      call('ZREM', order, 'k' .. entry)
    else
      call('HSET', values, 'v' .. entry, version, 'd' .. entry, value)
      call('ZADD', order, 0, 'k' .. entry)
    end
  end
  return answer(0, 0)
end

if kind == 'lease' then
  local owner, duration = given(), tonumber(given())
  local lease = call('HGET', key, 'l')
  local ends = lease and unpacked('>I8', lease) or 0
  local mine = lease and sub(lease, 9) == owner
  local fields = {}
  if duration == 0 then
    if mine then
      begin()
      call('HDEL', key, 'l')
    end
  elseif lease and not mine and ends > now then
    return refused('lease', ends, now)
  else
    if not mine then
      fence = fence + 1
    end
    fields = { 'l', pack('>I8', now + duration) .. owner }
  end
  begin()
  return answer(0, 0, nil, nil, fields)
end

if kind == 'delete' then
  local ended = life
  call('UNLINK', key, order, known, values)
  call('HSET', recent, mine, pack(DONE, ended, 0, 0, 0, 0, 0, 0, 0, 0), place, pack('>I8', now) .. mine)
  call('PEXPIRE', recent, math.min(60000, tonumber(memory)))
  return { 'gone', ended, now }
end

begin()
return answer(0, 0)

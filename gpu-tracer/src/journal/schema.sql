-- Version 1. Times are ns of boot time unless they are called wall_...; docs/journal.md describes every column.
CREATE TABLE boot (
    id INTEGER PRIMARY KEY,
    boot_id TEXT NOT NULL UNIQUE,
    wall_offset_ns INTEGER NOT NULL,
    kernel TEXT,
    host TEXT
);
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    boot INTEGER NOT NULL REFERENCES boot(id),
    started_ns INTEGER NOT NULL,
    alive_ns INTEGER NOT NULL,
    stopped INTEGER NOT NULL DEFAULT 0,
    version TEXT NOT NULL,
    plan TEXT NOT NULL
);
CREATE TABLE clock (
    boot INTEGER NOT NULL REFERENCES boot(id),
    at_ns INTEGER NOT NULL,
    wall_offset_ns INTEGER NOT NULL
);
CREATE TABLE gpu (
    boot INTEGER NOT NULL REFERENCES boot(id),
    gpu INTEGER NOT NULL,
    minor INTEGER,
    uuid TEXT,
    bus_id TEXT,
    name TEXT,
    PRIMARY KEY (boot, gpu)
) WITHOUT ROWID;
CREATE TABLE device (
    id INTEGER PRIMARY KEY,
    boot INTEGER NOT NULL REFERENCES boot(id),
    number TEXT NOT NULL,
    name TEXT NOT NULL,
    gpu INTEGER,
    UNIQUE (boot, number, name)
);
CREATE TABLE process (
    id INTEGER PRIMARY KEY,
    boot INTEGER NOT NULL REFERENCES boot(id),
    pid INTEGER NOT NULL,
    start_ns INTEGER NOT NULL,
    uid INTEGER,
    parent INTEGER REFERENCES process(id),
    exe TEXT,
    cgroup TEXT,
    seen_ns INTEGER NOT NULL,
    UNIQUE (pid, boot, start_ns)
);
CREATE TABLE process_name (
    process INTEGER NOT NULL REFERENCES process(id),
    since_ns INTEGER NOT NULL,
    comm TEXT NOT NULL,
    cmdline TEXT,
    PRIMARY KEY (process, since_ns)
) WITHOUT ROWID;
CREATE TABLE file (
    id INTEGER PRIMARY KEY,
    boot INTEGER NOT NULL REFERENCES boot(id),
    device INTEGER NOT NULL REFERENCES device(id),
    since_ns INTEGER NOT NULL,
    until_ns INTEGER,
    level INTEGER NOT NULL DEFAULT 64,
    opener INTEGER REFERENCES process(id),
    opened_ns INTEGER,
    opened_exactly INTEGER,
    ended TEXT
);
CREATE INDEX file_by_length ON file (boot, level, since_ns);
CREATE TABLE holding (
    id INTEGER PRIMARY KEY,
    boot INTEGER NOT NULL REFERENCES boot(id),
    file INTEGER NOT NULL REFERENCES file(id),
    process INTEGER NOT NULL REFERENCES process(id),
    since_ns INTEGER NOT NULL,
    until_ns INTEGER,
    level INTEGER NOT NULL DEFAULT 64,
    how TEXT NOT NULL,
    giver INTEGER REFERENCES process(id),
    ended TEXT
);
CREATE INDEX holding_by_length ON holding (boot, level, since_ns);
CREATE INDEX holding_by_process ON holding (process);
CREATE TABLE word (
    id INTEGER PRIMARY KEY,
    word TEXT NOT NULL UNIQUE
);
CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    boot INTEGER NOT NULL REFERENCES boot(id),
    at_ns INTEGER NOT NULL,
    what INTEGER NOT NULL REFERENCES word(id),
    process INTEGER REFERENCES process(id),
    file INTEGER REFERENCES file(id),
    detail TEXT
);
CREATE INDEX event_by_time ON event (boot, at_ns);
CREATE INDEX event_by_process ON event (process) WHERE process IS NOT NULL;
CREATE TABLE gap (
    id INTEGER PRIMARY KEY,
    boot INTEGER NOT NULL REFERENCES boot(id),
    from_ns INTEGER NOT NULL,
    to_ns INTEGER NOT NULL,
    cause TEXT NOT NULL,
    events INTEGER
);
CREATE TABLE memory (
    boot INTEGER NOT NULL REFERENCES boot(id),
    at_ns INTEGER NOT NULL,
    gpu INTEGER NOT NULL,
    used_mib INTEGER,
    total_mib INTEGER,
    PRIMARY KEY (boot, gpu, at_ns)
) WITHOUT ROWID;

CREATE VIEW events AS
SELECT event.id, boot.boot_id, event.at_ns,
       strftime('%Y-%m-%dT%H:%M:%fZ', (boot.wall_offset_ns + event.at_ns) / 1e9, 'unixepoch') AS wall,
       word.word AS what, process.pid,
       (SELECT comm FROM process_name WHERE process_name.process = event.process
        ORDER BY since_ns > event.at_ns, abs(since_ns - event.at_ns) LIMIT 1) AS comm,
       event.file, device.name AS device, device.gpu, event.detail
FROM event
JOIN boot ON boot.id = event.boot
JOIN word ON word.id = event.what
LEFT JOIN process ON process.id = event.process
LEFT JOIN file ON file.id = event.file
LEFT JOIN device ON device.id = file.device;

CREATE VIEW holdings AS
SELECT holding.id, boot.boot_id, device.name AS device, device.gpu, holding.file, process.pid,
       (SELECT comm FROM process_name WHERE process_name.process = holding.process
        ORDER BY since_ns DESC LIMIT 1) AS comm,
       (SELECT cmdline FROM process_name WHERE process_name.process = holding.process AND cmdline IS NOT NULL
        ORDER BY since_ns LIMIT 1) AS cmdline,
       holding.how, holding.ended, holding.since_ns, holding.until_ns,
       strftime('%Y-%m-%dT%H:%M:%fZ', (boot.wall_offset_ns + holding.since_ns) / 1e9, 'unixepoch') AS since,
       strftime('%Y-%m-%dT%H:%M:%fZ', (boot.wall_offset_ns + holding.until_ns) / 1e9, 'unixepoch') AS until
FROM holding
JOIN boot ON boot.id = holding.boot
JOIN process ON process.id = holding.process
JOIN file ON file.id = holding.file
JOIN device ON device.id = file.device;

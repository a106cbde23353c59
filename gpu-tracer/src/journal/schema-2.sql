-- Version 2: what the daemon said of each GPU.
CREATE TABLE verdict (
    id INTEGER PRIMARY KEY,
    boot INTEGER NOT NULL REFERENCES boot(id),
    gpu INTEGER,
    since_ns INTEGER NOT NULL,
    until_ns INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    status INTEGER NOT NULL,
    headline TEXT NOT NULL
);
CREATE INDEX verdict_by_time ON verdict (boot, since_ns);

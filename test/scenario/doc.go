// Package scenario plays text files against the agent: a file scripts the servers
// that the agent forwards to, the clock of its caches and the queries of its
// clients, and says what must come back, with TTLs. README.md here is the format;
// nobody needs Go to write a file.
//
// [Parse] makes a [Scenario] of a file; its errors say FILE:LINE and what was
// expected there. [Run] starts the file's upstreams on loopback addresses of its
// own ([upstream]), has an agent started on the file's Corefile, and goes through
// the steps one by one; each step is a type with one method, and the first that
// finds something else than what the file says ends the scenario with an error that
// names its line. All sockets are real. What is not real is the agent's clock, which
// stands still but for the steps that move it, so that TTLs are exact.
//
// The package knows nothing of the agent but the interface [Agent]; the tests of
// cmd/nodens play the files in testdata against the real one.
package scenario

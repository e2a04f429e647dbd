package report

// Names is the reply to GET /names: which names are asked for.
type Names struct {
	Header
	// Topic says which names: queries, client, waste, failing or slow. Window is the one that was asked
	// for: 10s, 1m or 1h. WindowSeconds is the time that the counts are of: half of it to all of it.
	Topic         string  `json:"topic"`
	Window        string  `json:"window"`
	WindowSeconds float64 `json:"windowSeconds"`
	// Queries is the number of the topic's queries in the window. A name that has no row has at
	// most Floor of them, apart from names in More.
	Queries uint64 `json:"queries"`
	Floor   uint64 `json:"floor"`
	// MaxWeight is the most queries that one counted query stands for: 1 if all were counted.
	MaxWeight uint64 `json:"maxWeight"`
	// KernelSample is 64 if one in 64 answers from the kernel is counted, with that weight. It is 0 if
	// none is.
	KernelSample int `json:"kernelSample"`
	// Names are the rows with the most queries first, More how many others there are.
	Names []Name `json:"names"`
	More  int    `json:"more"`
}

// Name is a row of [Names].
type Name struct {
	// Name has a final dot. With topic waste it is the parent of the names that were asked for.
	Name string `json:"name"`
	// Client is who asks, with topic client; else null.
	Client *NameClient `json:"client"`
	// Cause is why the queries failed, or what slow ones waited for; "" with other topics.
	Cause string `json:"cause"`
	// Queries is too high by Error at most, because the table is bounded. If only a part of the queries was
	// counted, Queries may also be off by Deviation, in either direction: two standard deviations. Otherwise
	// Deviation is 0.
	Queries          uint64  `json:"queries"`
	Error            uint64  `json:"error"`
	Deviation        uint64  `json:"deviation"`
	QueriesPerSecond float64 `json:"queriesPerSecond"`
	Share            float64 `json:"share"` // of the topic's queries
}

// NameClient is the client of a [Name]: whose the address was when it asked. Kind is as in [Client]. Address
// is empty for other, and for clients that are not known any more.
type NameClient struct {
	Kind         string `json:"kind"`
	Namespace    string `json:"namespace"`
	WorkloadKind string `json:"workloadKind"`
	Workload     string `json:"workload"`
	Pod          string `json:"pod"`
	Address      string `json:"address"`
}

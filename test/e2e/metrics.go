package main

const (
	requestsMetric  = "coredns_dns_requests_total"
	responsesMetric = "coredns_dns_responses_total"
	// viewLabel are the replies that an agent makes of its own view of the cluster.
	viewLabel = `plugin="kubernetes"`
	// metricsPort is where the agents of every manifest are scraped.
	metricsPort = 9253
)

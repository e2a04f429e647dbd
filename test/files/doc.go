// Package files holds the agent against shapes of configurations that are in public use: Corefiles of distributions and of
// managed clusters with their custom ConfigMaps, base Corefiles of NodeLocal DNSCache, hosts files and resolv.conf
// files. The shapes are written anew. What CoreDNS starts with, the agent starts with, too, unless the shape names the
// reason for a refusal.
package files

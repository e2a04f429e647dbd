package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// sampleNode is the node of the sample's pods.
const sampleNode = "sample"

// samplePods are the sample's pods (sample/manifests/pods.yaml) and what they ask, so that `top`, `explain` and `advise`
// have something to show: a quiet pod, one whose search path makes four queries of one, and one that never asks twice
// for the same name.
var samplePods = []struct {
	addr  string
	every time.Duration
	// names are those of round n, fully qualified.
	names func(n int) []string
}{
	{"127.0.0.11", time.Second, func(int) []string {
		return []string{"db-0.db.shop.svc.cluster.local.", "db-1.db.shop.svc.cluster.local."}
	}},
	{"127.0.0.12", 300 * time.Millisecond, func(int) []string {
		const name = "api.example.test."
		return []string{name + "shop.svc.cluster.local.", name + "svc.cluster.local.", name + "cluster.local.", name}
	}},
	{"127.0.0.13", 100 * time.Millisecond, func(n int) []string { return []string{fmt.Sprintf("page-%d.crawl.example.test.", n)} }},
}

// runSamplePods asks as the sample's pods do, until ctx ends. It returns when all have stopped.
func runSamplePods(ctx context.Context, port uint16) {
	var pods sync.WaitGroup
	for _, p := range samplePods {
		dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(p.addr), 0))}
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "udp4", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String())
		}}
		pods.Go(func() {
			tick := time.NewTicker(p.every)
			defer tick.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				for _, name := range p.names(n) {
					_, _ = resolver.LookupHost(ctx, name) // a denial is as good as an answer
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	pods.Wait()
}

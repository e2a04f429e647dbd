package app

// secondaries puts the metrics of the zones of primary servers, if there are some.
func (s scrape) secondaries(g *generation) {
	var zones, empty int
	for _, p := range g.blocks {
		if p.secondary() == nil {
			continue
		}
		all, none := p.secondary().Zones()
		zones, empty = zones+all, empty+none
	}
	if zones == 0 {
		return
	}
	st := g.primaries.Stats()
	s.put(secondaryZones, float64(zones-empty), "loaded")
	s.put(secondaryZones, float64(empty), "empty")
	s.put(secondaryTransfers, float64(st.Transferred.Load()), "transferred")
	s.put(secondaryTransfers, float64(st.Checked.Load()), "unchanged")
	s.put(secondaryTransfers, float64(st.Failed.Load()), "failed")
	s.put(secondaryNotifies, float64(st.Notified.Load()), "accepted")
	s.put(secondaryNotifies, float64(st.Ignored.Load()), "ignored")
}

package main

import (
	_ "embed"
)

//go:embed section.md.tmpl
var sectionText string

// Render returns the report about a large cluster as a section of the page.
func (r *scaleReport) Render(plots []plotFile) ([]byte, error) {
	data := struct {
		sectionData
		Plots                      []plotFile
		Following, Showing         string
		Crowd, Fleet               string
		Kinds, Questions           []tableEntry
		Shape, Crowds              any
		Total, Endpoints           int
		Changes, Rate, CrowdRate   int
		Nodes, FleetRate           int
		Conf                       string
		CrowdTotal, CrowdEndpoints int
	}{
		sectionData: r.newSectionData(r.Targets()), Plots: plots,
		Following: r.runTable(followColumns), Showing: r.runTable(delayColumns), Crowd: r.fleetTable(), Fleet: r.fleetCostTable(),
		Shape: r.shape, Crowds: r.fleetShape, Total: len(r.shape.Services()), Endpoints: r.shape.Endpoints(),
		Changes: r.size.changes(), Rate: changeRate, CrowdRate: sliceRate, Nodes: fleetNodes, FleetRate: fleetChangeRate,
		Conf: configText("scale"), CrowdTotal: len(r.fleetShape.Services()), CrowdEndpoints: r.fleetShape.Endpoints(),
	}
	for _, k := range agentKinds() {
		data.Kinds = append(data.Kinds, tableEntry{Name: k.name, What: k.what})
	}
	for _, w := range r.workloads {
		data.Questions = append(data.Questions, tableEntry{w.querySet.name, w.querySet.what, r.workloadTable(w)})
	}
	return fillTemplate(sectionText, data)
}

package scale

import (
	_ "embed"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

//go:embed section.md.tmpl
var sectionText string

// Render returns the page about a large cluster.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Following, Showing            string
		FleetTable, Fleet             string
		Kinds                         []harness.TableEntry
		Shape, FleetShape             any
		Total, Endpoints              int
		Changes, Rate, SliceRate      int
		Nodes, FleetRate              int
		FleetServices, FleetEndpoints int
	}{
		SectionData: r.NewSectionData(r.Targets(), plots),
		Following:   r.followTable(), Showing: r.delayTable(), FleetTable: r.fleetTable(), Fleet: r.fleetCostTable(),
		Shape: r.shape, FleetShape: r.fleetShape, Total: len(r.shape.Services()), Endpoints: r.shape.Endpoints(),
		Changes: r.size.changes(), Rate: changeRate, SliceRate: sliceRate, Nodes: fleetNodes, FleetRate: fleetChangeRate,
		FleetServices: len(r.fleetShape.Services()), FleetEndpoints: r.fleetShape.Endpoints(),
	}
	for _, k := range agentKinds() {
		data.Kinds = append(data.Kinds, harness.TableEntry{Name: k.name, What: k.what})
	}
	return harness.OnePage("large-cluster.md", sectionText, data)
}

package hosts

// Limits and a function that tests outside of the package compare with.
const (
	MaxFileSize    = maxFileSize
	MaxRecords     = maxRecords
	MaxLoggedLines = maxLoggedLines
)

var ReverseName = reverseName

// Publish makes records with that number of entries the ones in use, as a reload does. It must not run beside a reload.
func (t *Table) Publish(entries int) { t.publish(records{entries: entries}) }

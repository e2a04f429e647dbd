package hosts

// Limits, an error and a function that tests outside of the package compare with.
const (
	MaxFileSize    = maxFileSize
	MaxRecords     = maxRecords
	MaxLoggedLines = maxLoggedLines
)

var (
	ErrNotRegular = errNotRegular
	ReverseName   = reverseName
)

package hosts

// Limits and a function that tests outside of the package compare with.
const (
	MaxFileSize    = maxFileSize
	MaxRecords     = maxRecords
	MaxLoggedLines = maxLoggedLines
)

var ReverseName = reverseName

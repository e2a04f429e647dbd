# Settings of the go command that scripts share, so that they share its build cache: without
# cgo, as the agent is built, and without the repository's path, which differs between clones.
export CGO_ENABLED=0
GOFLAGS="$(go env GOFLAGS) -trimpath"
export GOFLAGS

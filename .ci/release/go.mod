// Kept out of go.work: it is only for maintainers.
module github.com/hostlocal-gc/hostlocal-gc/release

go 1.26.0

require golang.org/x/mod v0.36.0

// Kept out of go.work: nobody who uses the library needs it.
module github.com/hostlocal-gc/hostlocal-gc/release

go 1.26.0

require golang.org/x/mod v0.36.0

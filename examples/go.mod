module github.com/hostlocal-gc/hostlocal-gc/examples

go 1.25.0

require github.com/hostlocal-gc/hostlocal-gc v0.0.0

replace github.com/hostlocal-gc/hostlocal-gc => ..

module exprjudge

go 1.24

require (
	github.com/expr-lang/expr v1.17.7
	github.com/spf13/cast v1.10.0
)

// Command exprjudge evaluates expressions of expr-lang as GlassFlow's stateless transform does (transformation.go at c13349c4).
//
// It reads {expression, record} in JSON, one a line, and writes {value} or {error}, one a line.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/vm"
)

var functions = []expr.Option{
	expr.Function("parseQuery", parseQueryString),
	expr.Function("getQueryParam", getQueryParam),
	expr.Function("getNestedParam", getNestedParam),
	expr.Function("parseISO8601", parseISO8601),
	expr.Function("toDate", toDate),
	expr.Function("urlDecode", urlDecode),
	expr.Function("toString", toString),
	expr.Function("containsStr", containsStr),
	expr.Function("hasPrefix", hasPrefix),
	expr.Function("hasSuffix", hasSuffix),
	expr.Function("upper", upper),
	expr.Function("lower", lower),
	expr.Function("trim", trimSpaces),
	expr.Function("split", splitStr),
	expr.Function("join", join),
	expr.Function("replace", replace),
	expr.Function("toInt", toInt),
	expr.Function("toFloat", toFloat),
	expr.Function("parseUserAgent", parseUserAgent),
	expr.Function("waterfall", waterfall),
	expr.Function("extractPathType", extractPathType),
	expr.Function("hasKeyPrefix", hasKeyPrefix),
	expr.Function("hasAnyKey", hasAnyKey),
	expr.Function("keys", keys),
}

type question struct {
	Expression string         `json:"expression"`
	Record     map[string]any `json:"record"`
}

type answer struct {
	Value any    `json:"value"`
	Error string `json:"error,omitempty"`
}

func evaluate(programs map[string]*vm.Program, asked question) (value any, err error) {
	program, found := programs[asked.Expression]
	if !found {
		program, err = expr.Compile(asked.Expression, functions...)
		if err != nil {
			return nil, fmt.Errorf("compile: %w", err)
		}
		programs[asked.Expression] = program
	}
	return expr.Run(program, asked.Record)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	output := bufio.NewWriter(os.Stdout)
	defer output.Flush()
	programs := map[string]*vm.Program{}
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		var given answer
		value, err := evaluate(programs, asked)
		if err != nil {
			given.Error = err.Error()
		} else {
			given.Value = value
		}
		text, err := json.Marshal(given)
		if err != nil {
			text, _ = json.Marshal(answer{Error: "marshal: " + err.Error()})
		}
		output.Write(text)
		output.WriteByte('\n')
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

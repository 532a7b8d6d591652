package node

import (
	"fmt"
	"strings"
)

// ConfigurationPage makes docs/configuration.md.
func ConfigurationPage() string {
	var b strings.Builder
	b.WriteString("# Configuration\n\n" +
		"<!-- Made by `make docs` from the table in gocore/node/config.go: change it there. -->\n\n" +
		"fptps reads these names from the environment. Those that begin with `DMLC_` or `PS_`, and `PORT`, mean what they mean\n" +
		"in dmlc ps-lite. Arguments of `fptps.KVWorker` and options of the command line override the environment. An empty\n" +
		"value is the same as none.\n\n" +
		"| name | default | meaning |\n|---|---|---|\n")
	for _, s := range Settings {
		value := "not set"
		if s.Default != "" {
			value = "`" + s.Default + "`"
		}
		if s.Unit != "" {
			value += " " + s.Unit
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Name, value, s.Doc)
	}
	return b.String()
}

// Command configdoc prints docs/configuration.md from the table of settings.
package main

import (
	"fmt"

	"fptps/gocore/node"
)

func main() { fmt.Print(node.ConfigurationPage()) }

// Renders a Helm chart's templates with Go's own template engine and the few functions that this project's chart uses.
// It stands in for `helm template` where Helm is not installed. Usage: render CHART NAME NAMESPACE < values.json
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	chart, name, namespace := os.Args[1], os.Args[2], os.Args[3]
	var values map[string]interface{}
	fail(json.NewDecoder(os.Stdin).Decode(&values))
	data := map[string]interface{}{
		"Values":  values,
		"Release": map[string]string{"Name": name, "Namespace": namespace},
	}
	root := template.New("chart").Option("missingkey=error")
	root.Funcs(template.FuncMap{
		"quote": func(value interface{}) string { return strconv.Quote(fmt.Sprint(value)) },
		"toJson": func(value interface{}) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
		"fail": func(text string) (string, error) { return "", errors.New(text) },
		"include": func(name string, data interface{}) (string, error) {
			var out bytes.Buffer
			err := root.ExecuteTemplate(&out, name, data)
			return out.String(), err
		},
	})
	files, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	fail(err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		fail(err)
		_, err = root.New(filepath.Base(file)).Parse(string(text))
		fail(err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file, ".yaml") {
			continue
		}
		var out bytes.Buffer
		fail(root.ExecuteTemplate(&out, filepath.Base(file), data))
		if text := strings.TrimSpace(out.String()); text != "" {
			fmt.Printf("---\n%s\n", text)
		}
	}
}

package lab

import (
	"bytes"
	"embed"
	"fmt"
	"path"
	"text/template"
)

//go:embed files
var configFiles embed.FS

// render fills in one of the embedded files.
func render(name string, data any) ([]byte, error) {
	t, err := template.New(name).Option("missingkey=error").ParseFS(configFiles, path.Join("files", name))
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("render %s: %w", name, err)
	}
	return b.Bytes(), nil
}

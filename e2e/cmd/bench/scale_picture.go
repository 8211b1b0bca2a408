package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// point has the figures of a number of Services.
type point struct {
	services int
	figures  map[string]float64
}

// panels are the figures in the picture.
var panels = []string{
	"scale_speaker_idle_millicores", "scale_speaker_mib", "scale_controller_mib",
	"scale_endpoint_change_cpu_us", "scale_service_cpu_speaker_ms", "scale_service_cpu_controller_ms",
}

// Sizes of a panel, with its frame inside.
const (
	panelWide, panelHigh = 260, 190
	frameLeft, frameTop  = 50, 34
	frameWide, frameHigh = 195, 120
	panelsInRow          = 3
)

// picture draws how each figure grows with the number of Services, all axes from zero.
func picture(points []point) []byte {
	var out bytes.Buffer
	rows := (len(panels) + panelsInRow - 1) / panelsInRow
	fmt.Fprintf(
		&out,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n",
		panelsInRow*panelWide,
		rows*panelHigh,
	)
	fmt.Fprintln(&out, `<rect width="100%" height="100%" fill="white"/>`)
	for i, name := range panels {
		panel(&out, points, name, i%panelsInRow*panelWide, i/panelsInRow*panelHigh)
	}

	fmt.Fprintln(&out, "</svg>")
	return out.Bytes()
}

// panel draws the growth of one figure.
func panel(out *bytes.Buffer, points []point, name string, left, top int) {
	highest := slices.MaxFunc(points, func(a, b point) int {
		return int(1000 * (a.figures[name] - b.figures[name]))
	}).figures[name]

	highest = max(highest, 0.001)
	last := points[len(points)-1].services
	fmt.Fprintf(out, `<g transform="translate(%d %d)">`+"\n", left, top)
	fmt.Fprintf(out, `<text x="%d" y="20" font-weight="bold">%s</text>`+"\n", 12, strings.TrimPrefix(name, "scale_"))
	fmt.Fprintf(
		out,
		`<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#999"/>`+"\n",
		frameLeft,
		frameTop,
		frameWide,
		frameHigh,
	)
	var line strings.Builder
	for _, p := range points {
		value := p.figures[name]
		x := frameLeft + float64(frameWide)*float64(p.services)/float64(last)
		y := frameTop + frameHigh*(1-0.9*value/highest)
		fmt.Fprintf(&line, "%.1f,%.1f ", x, y)
		fmt.Fprintf(
			out,
			`<circle cx="%.1f" cy="%.1f" r="3" fill="#06c"/><text x="%.1f" y="%.1f" text-anchor="end">%.4g</text>`+"\n",
			x,
			y,
			x-4,
			y-5,
			value,
		)
		fmt.Fprintf(
			out,
			`<text x="%.1f" y="%d" text-anchor="middle" fill="#666">%d</text>`+"\n",
			x,
			frameTop+frameHigh+14,
			p.services,
		)
	}

	fmt.Fprintf(out, `<polyline points="%s" fill="none" stroke="#06c"/>`+"\n", strings.TrimSpace(line.String()))
	fmt.Fprintf(
		out,
		`<text x="%d" y="%d" text-anchor="end" fill="#666">0</text>`+"\n</g>\n",
		frameLeft-4,
		frameTop+frameHigh,
	)
}

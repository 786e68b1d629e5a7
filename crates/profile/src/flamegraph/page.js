"use strict";
// The page around inferno's picture: it opens where the stacks begin, and heading, buttons and the
// line about a function stay in the window however tall the picture is.
window.addEventListener("load", function() {
    var svg = document.documentElement;
    // Part of another page: that one scrolls.
    if (svg.nodeName != "svg") return;
    var height = svg.height.baseVal.value;
    var bar = function(top, bottom, ids) {
        var group = document.createElementNS(svg.namespaceURI, "g");
        var back = document.createElementNS(svg.namespaceURI, "rect");
        var place = {y: top, width: "100%", height: bottom - top, "class": "bar"};
        for (var name in place) back.setAttribute(name, place[name]);
        group.appendChild(back);
        ids.forEach(function(id) {
            group.appendChild(document.getElementById(id));
        });
        return svg.appendChild(group);
    };
    var y = function(id) {
        return parseFloat(document.getElementById(id).getAttribute("y"));
    };
    // The end of the picture is far from the root where that is at the top.
    if (inverted) document.getElementById("matched").setAttribute("y", y("details"));
    var heading = ["title", "subtitle", "unzoom", "search"];
    var foot = ["details", "matched"];
    if (inverted) heading = heading.concat(foot.splice(0));
    var above = bar(0, Math.max.apply(null, heading.map(y)) + fontsize, heading);
    var below = foot.length ? bar(y("details") - fontsize - 2, height, foot) : null;
    var follow = function() {
        var hidden = height - window.innerHeight - window.scrollY;
        above.setAttribute("transform", "translate(0," + Math.max(0, window.scrollY) + ")");
        if (below) below.setAttribute("transform", "translate(0," + -Math.max(0, hidden) + ")");
    };
    window.addEventListener("scroll", follow);
    window.addEventListener("resize", follow);
    // One that was opened before is put back where it was by the browser.
    if (!inverted && window.scrollY == 0) window.scrollTo(0, height);
    follow();
});
